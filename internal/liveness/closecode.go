package liveness

import (
	"strconv"
	"strings"
	"time"
)

// Class is what an ended connection asks of the one who held it.
type Class uint8

// The classes.
const (
	// Back: the transport ended, which says nothing about the work. Come back;
	// after a stable connection the backoff starts anew.
	Back Class = iota + 1
	// Counted: come back with backoff up to the cap; a stable connection before
	// does not excuse it.
	Counted
	// Delayed: come back after the delay that the reason names.
	Delayed
	// Later: the other side is well and cannot help now. As Counted, and not
	// within LaterMin.
	Later
	// Stop: final until the person acts.
	Stop
)

var classNames = [...]string{Back: "back", Counted: "counted", Delayed: "delayed", Later: "later", Stop: "stop"}

func (c Class) String() string {
	if int(c) < len(classNames) && classNames[c] != "" {
		return classNames[c]
	}
	return "none"
}

// Profile is what the close codes of one protocol mean.
type Profile struct {
	Name  string
	codes map[uint16]Class
	// ranges are looked at in order where codes has no entry.
	ranges []codeRange
	// ended are the codes that end a channel as it should end.
	ended []uint16
}

type codeRange struct {
	from, to uint16 // both included
	class    Class
}

// Holdfast is the profile of docs/protocol.md.
var Holdfast = &Profile{
	Name: "holdfast",
	codes: map[uint16]Class{
		1000: Back, 1001: Back, 1005: Back, 1006: Back, 1011: Back,
		1012: Delayed,
		1013: Later,
		1008: Stop, 4000: Stop, 4001: Stop,
		4104: Later, 4129: Later,
		4401: Stop, 4403: Stop, 4404: Stop, 4409: Stop, 4426: Stop,
		4502: Later,
	},
	ranges: []codeRange{
		{0, 3999, Counted},
		{4000, 4099, Stop},
		{4100, 4199, Later},
		{4400, 4499, Stop},
		{4500, 4599, Later},
		{4000, 65535, Later},
	},
	ended: []uint16{4001},
}

// Hydro is the profile of a Hydro server: 1000 is no farewell there, and only
// three codes are final.
var Hydro = &Profile{
	Name: "hydro",
	codes: map[uint16]Class{
		1000: Back, 1001: Back, 1005: Back, 1006: Back, 1011: Back,
		1012: Delayed,
		1013: Later,
		1008: Stop, 4000: Stop, 4001: Stop,
	},
	ranges: []codeRange{{0, 65535, Counted}},
	ended:  []uint16{4001},
}

// Class is what a close code asks. Every code has a class.
func (p *Profile) Class(code uint16) Class {
	if c, ok := p.codes[code]; ok {
		return c
	}
	for _, r := range p.ranges {
		if code >= r.from && code <= r.to {
			return r.class
		}
	}
	return Counted
}

// Ended reports whether a code that stops is the proper end and no error.
func (p *Profile) Ended(code uint16) bool {
	for _, c := range p.ended {
		if c == code {
			return true
		}
	}
	return false
}

// MaxPeerDelay bounds a delay that a peer asks for. A restart with thousands of
// agents is spread over 30 s; half an hour would let one wrong number keep a
// machine away for an afternoon.
const MaxPeerDelay = 10 * time.Minute

// restartReason starts the reason of a 1012 that names a delay.
const restartReason = "restart after="

// RestartReason is the reason of a 1012: "restart after=MS".
func RestartReason(after time.Duration) string {
	return restartReason + strconv.FormatInt(max(0, after.Milliseconds()), 10)
}

// RestartDelay reads the delay from the reason of a 1012, at most
// MaxPeerDelay. Words after the number are ignored; a reason of another form
// is not ok.
func RestartDelay(reason string) (after time.Duration, ok bool) {
	text, found := strings.CutPrefix(reason, restartReason)
	if !found {
		return 0, false
	}
	text, _, _ = strings.Cut(text, " ")
	ms, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		return 0, false
	}
	if ms > uint64(MaxPeerDelay/time.Millisecond) {
		return MaxPeerDelay, true
	}
	return time.Duration(ms) * time.Millisecond, true
}

// CodeOfRefusal is the close code whose meaning an HTTP answer to an upgrade
// has. ours says that it carried Holdfast-Refusal: without it a 401 or 403 may
// be the word of a captive portal or a firewall and is only a failed attempt.
func CodeOfRefusal(status int, ours bool) uint16 {
	switch {
	case status == 429:
		return 4129
	case status == 503:
		return 1013
	case !ours:
		return 1006
	}
	switch status {
	case 400:
		return 1008
	case 401:
		return 4401
	case 403:
		return 4403
	case 404:
		return 4404
	case 426:
		return 4426
	}
	return 1006
}
