// Package channels holds the five kinds of channel that sites build again and
// again on package live, each with its own contract: Inbox, Watch, Detail, Run
// and Lease.
//
// None of them remembers what a connection missed: each sends its state on open.
// What a caller will get wrong: who a person is and what they may see is decided
// before, by whoever makes the Handler.
package channels

// The close codes that these channels send.
const (
	closeTryLater = 1013 // the state cannot be read now: come back
	closeEnded    = 4001 // the proper end
	closeNotFound = 4404
)

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}
