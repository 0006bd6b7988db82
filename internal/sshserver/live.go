package sshserver

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"

	"holdfast/internal/pairing"
	"holdfast/internal/sshlink"
)

// live is one connection.
type live struct {
	server   *Server
	conn     *ssh.ServerConn
	log      *slog.Logger
	deviceID string // what the relay calls the device

	identity
	hostKey pairing.Key // the one that this connection's handshake proved

	channels atomic.Int32
	noMore   atomic.Bool // no-more-sessions@openssh.com was said
	wg       sync.WaitGroup
}

// identity is who authenticated.
type identity struct {
	key    pairing.Key
	paired bool   // else the key may reach `pair` only
	device Device // if paired
}

// identityKey finds the identity in what x/crypto keeps for the key that
// authenticated, which is not always the one asked about last.
type identityKey struct{}

// identify decides about a key that a device offers.
func (s *Server) identify(key ssh.PublicKey, log *slog.Logger) (*ssh.Permissions, error) {
	k, err := sshlink.FromSSH(key)
	if err != nil {
		return nil, err
	}
	id := identity{key: k}
	id.device, id.paired = s.o.Devices.ByKey(k)
	if !id.paired && !s.links.anyOpen(time.Now()) {
		log.Info("ssh key refused", "key", k.Fingerprint())
		return nil, &ssh.BannerError{
			Err:     errUnknownKey,
			Message: "holdfast: this device's key is not paired with " + string(s.o.Machine) + "; run `holdfast pair` there\n",
		}
	}
	return &ssh.Permissions{ExtraData: map[any]any{identityKey{}: id}}, nil
}

// serve runs the connection until it ends, and everything on it.
func (l *live) serve(chans <-chan ssh.NewChannel, reqs <-chan *ssh.Request) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	// Both loops end when x/crypto closes their channels, which it does when the
	// connection ends.
	l.wg.Go(func() { l.globalRequests(reqs) })
	if l.paired {
		// A write, which waits for a device that does not read; ends with the
		// connection.
		l.wg.Go(func() {
			l.conn.SendRequest("hostkeys-00@openssh.com", false, l.server.o.HostKeys.announcement())
		})
	} else {
		grace := time.AfterFunc(pairGrace, func() { l.conn.Close() })
		defer grace.Stop()
	}
	for nc := range chans {
		l.open(ctx, nc)
	}
	cancel()
	l.wg.Wait()
}

// globalRequests answers what concerns the whole connection. Forwarding of
// listening ports is among what is refused.
func (l *live) globalRequests(reqs <-chan *ssh.Request) {
	for req := range reqs {
		switch {
		case req.Type == "keepalive@openssh.com":
			req.Reply(true, nil)
		case req.Type == "no-more-sessions@openssh.com":
			l.noMore.Store(true)
			req.Reply(true, nil)
		case req.Type == "hostkeys-prove-00@openssh.com" && l.paired:
			answer, ok := l.server.o.HostKeys.prove(l.conn.SessionID(), req.Payload)
			req.Reply(ok, answer)
		default:
			req.Reply(false, nil)
		}
	}
}

// open decides about a new channel. What it starts ends with the channel or the
// connection, and serve waits for it.
func (l *live) open(ctx context.Context, nc ssh.NewChannel) {
	limit := int32(maxChannels)
	if !l.paired {
		limit = maxUnpairedChannels
	}
	var run func(context.Context, ssh.NewChannel)
	switch nc.ChannelType() {
	case "session":
		if l.noMore.Load() {
			nc.Reject(ssh.Prohibited, "you said that there would be no more sessions")
			return
		}
		run = l.session
	case "direct-tcpip":
		if !l.paired || l.server.o.ShellOff {
			nc.Reject(ssh.Prohibited, "port forwarding is not allowed")
			return
		}
		run = l.forward
	default:
		nc.Reject(ssh.UnknownChannelType, "not offered here")
		return
	}
	if l.channels.Add(1) > limit {
		l.channels.Add(-1)
		nc.Reject(ssh.ResourceShortage, "too many channels on this connection")
		return
	}
	l.wg.Go(func() {
		defer l.channels.Add(-1)
		run(ctx, nc)
	})
}
