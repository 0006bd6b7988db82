// Package faultproxy is a TCP proxy that fails on purpose, for tests only. It
// sits between a listener and a dial function, so it works on loopback and over
// package memnet in a bubble alike. It follows HTTP upgrades and WebSocket
// frames on both directions, so that a fault can fire at a byte or a frame
// instead of at a time.
//
// It never changes a byte that no fault asked it to change, and it never reads
// TLS: behind TLS only byte positions mean anything.
//
// What a caller will get wrong: a stalled direction passes on neither bytes nor
// the end of the connection, which is the point; resume it or close the proxy,
// or goroutines of the code under test wait for ever. And a cut is a reset:
// what the receiver had not read may be lost with it.
package faultproxy

import "time"

// Direction says which way bytes flow.
type Direction uint8

// The directions. Up is from the side that dialled to the side that listens.
const (
	Up   Direction = 1
	Down Direction = 2
	Both Direction = Up | Down
)

func (d Direction) String() string {
	switch d {
	case Up:
		return "up"
	case Down:
		return "down"
	case Both:
		return "both"
	}
	return "none"
}

// Position is a place in one direction of a connection. The zero value is the
// present one: the start for a connection that is yet to come.
type Position struct {
	byte   int64 // before this byte, from 0
	frame  int   // in this frame, from 1; 0: byte counts
	offset int64 // before this byte of the frame, from 0
	set    bool
}

// Byte is the place before byte n, counted from 0 with the handshake included.
func Byte(n int64) Position { return Position{byte: n, set: true} }

// Frame is the place before frame n, counted from 1; Frame(1) is reached as soon
// as the handshake has passed, Frame(2) as soon as the first frame has.
func Frame(n int) Position { return Position{frame: n, set: true} }

// InFrame is the place inside frame n after so many of its bytes, its header
// included.
func InFrame(n int, bytes int64) Position { return Position{frame: n, offset: bytes, set: true} }

type kind uint8

const (
	stall kind = iota + 1
	cut
	finish
	delay
	trickle
	refuse
	corrupt
	swap
	reclaimIdle
	answerPings
)

// Fault is one thing that goes wrong. Make it with the functions of its name.
type Fault struct {
	kind   kind
	dir    Direction
	at     Position
	d      time.Duration
	rate   int
	bit    int
	answer string
	reaper Reaper
}

// At moves a fault to a position of its direction. Of a fault in both
// directions each fires at that position of its own direction; Cut fires at the
// first of them, Refuse has no position.
func (f Fault) At(p Position) Fault {
	f.at = p
	return f
}

// Stall makes a half-open link: the direction accepts (what buffers hold) and
// delivers nothing, not even the end of the connection, until Resume. Nothing
// that was accepted is lost.
func Stall(d Direction) Fault { return Fault{kind: stall, dir: d} }

// Cut resets both sides. d says in which direction its position counts.
func Cut(d Direction) Fault { return Fault{kind: cut, dir: d} }

// Finish sends FIN in the direction and drops what comes after; the other
// direction goes on.
func Finish(d Direction) Fault { return Fault{kind: finish, dir: d} }

// Delay holds every byte of the direction for a time; throughput stays. Zero
// ends it.
func Delay(d Direction, by time.Duration) Fault { return Fault{kind: delay, dir: d, d: by} }

// Trickle lets so many bytes a second through. Zero ends it.
func Trickle(d Direction, bytesPerSecond int) Fault {
	return Fault{kind: trickle, dir: d, rate: bytesPerSecond}
}

// Refuse never dials: it resets the connection after accepting it, or, with an
// answer, reads the request's head, sends the answer and closes, as a captive
// portal does.
func Refuse(answer string) Fault { return Fault{kind: refuse, dir: Both, answer: answer} }

// Corrupt flips one bit, 0 to 7, of the byte at its position.
func Corrupt(d Direction, bit int) Fault { return Fault{kind: corrupt, dir: d, bit: bit & 7} }

// Swap exchanges the first whole frame from its position on with the one after
// it.
func Swap(d Direction) Fault { return Fault{kind: swap, dir: d} }

// AnswerPings is an edge whose far side is gone: from its position in direction
// d on, but not before the upgrade is done, the connection to the receiver of d
// is reset, and the proxy answers the sender's protocol pings itself and
// swallows everything else.
// AnswerPings(Up) leaves the side that dialled with such an edge, Down the side
// that listens.
func AnswerPings(d Direction) Fault { return Fault{kind: answerPings, dir: d} }

// Activity is what a reaper takes for life.
type Activity uint8

// The activities.
const (
	// AnyByte of either direction keeps a link.
	AnyByte Activity = iota
	// DownBytes only, from the listening side, keep it.
	DownBytes
	// BothWays: each direction must move.
	BothWays
)

func (a Activity) String() string {
	return [...]string{AnyByte: "any byte", DownBytes: "down bytes", BothWays: "both ways"}[a]
}

// Reaper is a middlebox that drops idle links.
type Reaper struct {
	Limit  time.Duration
	Counts Activity
	// Fin: it says so with a FIN to both sides. Without it the link goes mute.
	Fin bool
}

// ReclaimIdle puts a reaper into the path. A link that it dropped without FIN
// accepts and delivers nothing for good; Resume does not bring it back.
func ReclaimIdle(r Reaper) Fault { return Fault{kind: reclaimIdle, dir: Both, reaper: r} }

// Reapers are the idle limits of real paths: 15 s of some CDNs, 60 s of common
// reverse proxies and load balancers, 100 s and 300 s of larger edges; each
// counting every byte, and counting those to the dialling side only.
func Reapers() (all []Reaper) {
	for _, limit := range []time.Duration{15, 60, 100, 300} {
		for _, counts := range []Activity{AnyByte, DownBytes} {
			all = append(all, Reaper{Limit: limit * time.Second, Counts: counts})
		}
	}
	return all
}
