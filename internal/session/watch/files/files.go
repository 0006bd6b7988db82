// Package files tells when files change on which the status of a session rests:
// through inotify on their directories where the system has it, else by asking
// for their size and time a few times a second.
//
// It reads no file. What a caller will get wrong: a change is told by its owner,
// not by its file, and a file that is not there yet is told when it comes.
package files
