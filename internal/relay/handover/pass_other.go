//go:build !linux

package handover

import (
	"errors"
	"net"
	"os"
	"syscall"
)

// Supported says whether this system can hand sockets over.
const Supported = false

// ErrUnsupported is what everything here returns.
var ErrUnsupported = errors.New("sockets cannot be handed over on this system")

// FD is an error here.
func FD(syscall.Conn) (int, error) { return -1, ErrUnsupported }

// Keep is an error here.
func Keep([]int, bool) error { return ErrUnsupported }

// File is an error here.
func File(*State) (*os.File, error) { return nil, ErrUnsupported }

// Conn is an error here.
func Conn(int) (net.Conn, error) { return nil, ErrUnsupported }

// NewListener is an error here.
func NewListener(int) (net.Listener, error) { return nil, ErrUnsupported }

// CloseAll does nothing.
func CloseAll([]int) {}

// Exec is an error here.
func Exec(string, []string, []string) error { return ErrUnsupported }
