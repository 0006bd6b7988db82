// Command holdfast reaches the terminal sessions on your own machines through a
// relay that cannot read them. See `holdfast help` and docs/.
//
// It holds no logic: package cli reads arguments, environment and standard
// streams, and decides the exit code.
package main

import "holdfast/internal/cli"

func main() { cli.Main() }
