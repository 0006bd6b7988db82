// Command fault puts the fault proxy of the Go tests between the page and a
// relay, for the tests of the page. It prints the proxy's address as its first
// line; each line of its standard input is one thing to do, answered by "ok":
//
//	target ADDR   where later connections go
//	stall         every live link becomes half-open: accepts, delivers nothing
//	stall-new     so does every later one
//	heal          ends that
//	rtt MS        later links have that round trip, the handshake of TCP included
//	cut           resets every live link
//
// It ends with its standard input.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"holdfast/internal/faultproxy"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	var target atomic.Value
	var handshake atomic.Int64 // nanoseconds
	proxy, err := faultproxy.New(faultproxy.Options{
		Listener: listener,
		Dial: func(ctx context.Context) (net.Conn, error) {
			addr, ok := target.Load().(string)
			if !ok {
				return nil, errors.New("no target yet")
			}
			// Whoever connects has its answer from the loopback at once; what it sends
			// waits for as long as the answer would have taken.
			if wait := time.Duration(handshake.Load()); wait > 0 {
				select {
				case <-time.After(wait):
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}
			var d net.Dialer
			return d.DialContext(ctx, "tcp", addr)
		},
	})
	if err != nil {
		return err
	}
	defer proxy.Close()
	fmt.Println(proxy.Addr())
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		word, rest, _ := strings.Cut(lines.Text(), " ")
		switch word {
		case "target":
			target.Store(rest)
		case "stall":
			proxy.StallAll(faultproxy.Both)
		case "stall-new":
			proxy.ArmEvery(faultproxy.Stall(faultproxy.Both))
		case "heal":
			proxy.Disarm()
			proxy.ResumeAll(faultproxy.Both)
		case "rtt":
			ms, err := strconv.Atoi(rest)
			if err != nil {
				return err
			}
			rtt := time.Duration(ms) * time.Millisecond
			handshake.Store(int64(rtt))
			proxy.ArmEvery(faultproxy.Delay(faultproxy.Both, rtt/2))
		case "cut":
			proxy.CutAll()
		default:
			return fmt.Errorf("unknown command %q", word)
		}
		fmt.Println("ok")
	}
	return lines.Err()
}
