// Package scenario holds the tests of relay, agent and client together, with
// faults on the way between them: the table of faults (make matrix), the edge
// that answers for a relay that lost the socket, sleep, slow links, and a relay
// that two thousand agents come back to.
//
// It has no code of its own. The same scenes run twice: in memory and virtual
// time, where every time is exact, and on loopback in real time. What a reader
// will get wrong: a fault's direction is that of the bytes, Up being towards the
// relay on either side of it, because agent and device both dial.
package scenario
