//go:build !unix

package sshlink

import "io/fs"

// readableByOthers cannot be told from mode bits here: access is by ACL.
func readableByOthers(fs.FileInfo) bool { return false }
