// Package wsconn is the dialling side's WebSocket, for agent and device: it
// connects to a relay and gives either a Control connection of text messages
// or a Stream that is a net.Conn, and says exactly at which hop a dial failed.
//
// It never listens, never reads the environment and never puts a token into an
// error or a log. It is the only importer of coder/websocket.
//
// What a caller will get wrong: a WebSocket has no half-close, so a Stream has
// no CloseWrite (see Join); a read deadline that passes ends the Stream, since
// a frame may have been cut in half; and a Stream notices a dead path only
// while somebody is in Read, because a reader that is stopped by its own side
// proves nothing about the path.
package wsconn

import (
	"net/url"

	"holdfast/internal/wsconn/reach"
)

// CheckRelay is reach.CheckRelay.
func CheckRelay(u *url.URL, insecureHTTP bool) error { return reach.CheckRelay(u, insecureHTTP) }

// IsLoopback is reach.IsLoopback.
func IsLoopback(host string) bool { return reach.IsLoopback(host) }

// HintOf is reach.HintOf.
func HintOf(err error) string { return reach.HintOf(err) }
