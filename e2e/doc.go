// Package e2e tests the built binary from outside, with a real sshd and a real
// ssh: what a person on two computers does, and what a hostile relay, an older
// peer or a crash does to them. It has tests only, is a module of its own, and
// knows the binary by its command line and the wire by docs/protocol.md.
//
// What a reader will get wrong: nothing here may import the main module, since
// a change of the protocol would then change the test with it.
package e2e
