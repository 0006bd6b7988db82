package park

// Frozen is a connection as one process hands it to another: a new version of
// the program that takes over the sockets of the old one.
type Frozen struct {
	// Conn is the connection in the process that froze it.
	Conn *Conn
	// FD is its descriptor, which stays the property of the Lot that froze it: it
	// is duplicated to the other process, by inheritance or through a socket.
	FD int
	// Received is what came of an incomplete message, Unsent what waits to be sent.
	Received, Unsent []byte
}
