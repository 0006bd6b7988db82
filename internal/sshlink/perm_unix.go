//go:build unix

package sshlink

import "io/fs"

// readableByOthers reports whether group or world may use a key file.
func readableByOthers(info fs.FileInfo) bool { return info.Mode().Perm()&0o077 != 0 }
