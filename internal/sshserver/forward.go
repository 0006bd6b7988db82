package sshserver

import (
	"context"
	"io"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

// forwardTimeout bounds connecting to a port of this machine, which answers at
// once or is overloaded.
const forwardTimeout = 5 * time.Second

// loopbackAddrs turns the target of a port forwarding into addresses to try;
// none where it is not this machine's loopback. Names are not looked up: what
// they mean is somebody else's word, "localhost" excepted.
func loopbackAddrs(host string, port uint32) []string {
	if port == 0 || port > 1<<16-1 {
		return nil
	}
	p := strconv.Itoa(int(port))
	if host == "localhost" {
		return []string{net.JoinHostPort("127.0.0.1", p), net.JoinHostPort("::1", p)}
	}
	addr, err := netip.ParseAddr(host)
	if err != nil || addr.Zone() != "" || !addr.Unmap().IsLoopback() {
		return nil
	}
	return []string{net.JoinHostPort(addr.Unmap().String(), p)}
}

// forward joins a direct-tcpip channel with a port of this machine.
func (l *live) forward(ctx context.Context, nc ssh.NewChannel) {
	var m struct {
		Host       string
		Port       uint32
		OriginHost string
		OriginPort uint32
	}
	if ssh.Unmarshal(nc.ExtraData(), &m) != nil {
		nc.Reject(ssh.ConnectionFailed, "bad request")
		return
	}
	addrs := loopbackAddrs(m.Host, m.Port)
	if len(addrs) == 0 {
		l.log.Info("port forwarding refused", "port", m.Port)
		nc.Reject(ssh.Prohibited, "only ports of this machine's loopback are forwarded")
		return
	}
	conn, err := dialFirst(ctx, addrs)
	if err != nil {
		nc.Reject(ssh.ConnectionFailed, err.Error())
		return
	}
	defer conn.Close()
	ch, reqs, err := nc.Accept()
	if err != nil {
		return // the connection has ended
	}
	defer ch.Close()
	l.log.Info("port forwarding", "port", m.Port)
	join(ctx, conn.(*net.TCPConn), ch, reqs)
}

func dialFirst(ctx context.Context, addrs []string) (conn net.Conn, err error) {
	d := net.Dialer{Timeout: forwardTimeout}
	for _, a := range addrs {
		if conn, err = d.DialContext(ctx, "tcp", a); err == nil {
			return conn, nil
		}
	}
	return nil, err
}

// join copies both ways, with half-closes, until both ended or the channel was
// closed; then all of it has ended.
func join(ctx context.Context, conn *net.TCPConn, ch ssh.Channel, reqs <-chan *ssh.Request) {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	var wg, requests sync.WaitGroup
	wg.Go(func() {
		io.Copy(conn, ch)
		conn.CloseWrite()
	})
	wg.Go(func() {
		io.Copy(ch, conn)
		ch.CloseWrite()
	})
	requests.Go(func() {
		ssh.DiscardRequests(reqs)
		conn.Close() // the device closed the channel: nobody reads any more
	})
	wg.Wait()
	ch.Close()
	requests.Wait()
}
