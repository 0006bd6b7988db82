package lab

import (
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"holdfast/internal/client"
	"holdfast/internal/wsconn"
)

// What the service of the machine does with a stream, by its first byte.
const (
	echoes = 'e' // sends everything back
	pours  = 'p' // sends a known row of bytes, for ever
)

// banner is how an SSH server begins, by which the relay proves that a device can
// get in.
const banner = "SSH-2.0-lab\r\n"

// pieceBytes is what the service pours at once.
const pieceBytes = 16 << 10

// serve is the machine's service, in place of an sshd.
func (s *stage) serve() {
	for {
		c, err := s.service.Accept()
		if err != nil {
			return
		}
		s.wait.Go(func() { // ends with its stream, which ends with the agent
			defer c.Close()
			if _, err := io.WriteString(c, banner); err != nil {
				return
			}
			first := make([]byte, 1)
			if _, err := io.ReadFull(c, first); err != nil {
				return
			}
			if first[0] == echoes {
				io.Copy(c, c)
				return
			}
			piece := make([]byte, pieceBytes)
			for i := range piece {
				piece[i] = byte(i)
			}
			for {
				if _, err := c.Write(piece); err != nil {
					return
				}
			}
		})
	}
}

// roundTrip sends a byte to the service and waits for it.
func roundTrip(c net.Conn) error {
	if _, err := c.Write([]byte{echoes, 'x'}); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, 1))
	return err
}

// ghostScene: the relay has lost the socket, the edge keeps it.
func ghostScene(s *stage) error {
	s.edge.start()
	if err := s.startAgent(s.edgeURL()); err != nil {
		return err
	}
	if err := s.until("the relay has answered", 5*time.Second, func() bool { return s.agent.Status().Proven }); err != nil {
		return err
	}
	s.sayAgent()
	if err := s.sayRelay(); err != nil {
		return err
	}
	if err := s.enter(); err != nil {
		return err
	}
	attempt := s.agent.Status().Attempt
	s.say("edge", "I lose the relay's side of this connection. The agent's side I keep, and I answer its protocol pings")
	s.edge.strike(ghost)
	if err := s.until("the relay knows", 5*time.Second, func() bool {
		state, err := s.relayState()
		return err != nil || state == "offline"
	}); err != nil {
		return err
	}
	if err := s.sayRelay(); err != nil {
		return err
	}
	if err := s.enter(); err == nil {
		return errors.New("a device got in over a socket that is lost")
	}
	struck := time.Now()
	next := 25 * time.Second
	for s.agent.Status().Attempt == attempt {
		told := time.Since(struck) * time.Duration(s.scene.Factor)
		if told >= next {
			s.sayAgent()
			next += 25 * time.Second
		}
		if told > 130*time.Second {
			return errors.New("130 s are over and the agent still believes the edge")
		}
		if err := s.sleep(time.Second); err != nil {
			return err
		}
	}
	s.say("agent", "%s", s.agent.Status().LastError)
	answered, eaten := s.edge.count()
	s.say("edge", "I answered %d protocol pings and swallowed %d other frames; only an answer of the relay's own code could have kept the agent", answered, eaten)
	if err := s.until("the agent is back", 5*time.Second, func() bool { return s.agent.Status().Proven }); err != nil {
		return err
	}
	s.sayAgent()
	if err := s.sayRelay(); err != nil {
		return err
	}
	return s.enter()
}

// halfOpenScene: a device's link goes mute while nobody types.
func halfOpenScene(s *stage) error {
	s.edge.start()
	if err := s.startAgent(s.relayURL); err != nil {
		return err
	}
	stream, err := s.dial(s.edgeURL())
	if err != nil {
		return err
	}
	defer stream.CloseNow()
	if err := roundTrip(stream); err != nil {
		return err
	}
	s.say("device", "a session is open, and quiet")
	s.say("edge", "from now on I deliver nothing, in either direction, and close nothing")
	s.edge.strike(mute)
	struck := time.Now()
	over := make(chan error, 1)
	go func() { // ends with the stream, which this function ends
		_, err := stream.Read(make([]byte, 1))
		over <- err
	}()
	for next := 5 * time.Second; ; {
		select {
		case err := <-over:
			s.say("device", "%v", client.Diagnose(err, s.target(s.edgeURL())))
			took := time.Since(struck) * time.Duration(s.scene.Factor)
			if !errors.Is(err, wsconn.ErrDead) {
				return fmt.Errorf("ended by %w, and not by a verdict", err)
			}
			s.say("lab", "noticed %v after the last byte; without asking, a kernel notices after 15 minutes or never", took.Round(time.Second))
			return s.enter()
		case <-s.ctx.Done():
			return s.ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
		told := time.Since(struck) * time.Duration(s.scene.Factor)
		if told > 40*time.Second {
			return errors.New("40 s are over and the device still believes the link")
		}
		if told >= next {
			s.say("device", "the session is %s", stream.State())
			next += 5 * time.Second
		}
	}
}

// idleScene: an edge that reclaims links that were idle for 30 s, then one with
// a limit of 60 s.
func idleScene(s *stage) error {
	s.say("lab", "an edge with an idle limit of 30 s; the heartbeat of a control connection comes each 45 s")
	s.edge.idleLimit = s.real(30 * time.Second)
	s.edge.start()
	if err := s.startAgent(s.edgeURL()); err != nil {
		return err
	}
	if err := s.until("the relay has answered", 5*time.Second, func() bool { return s.agent.Status().Proven }); err != nil {
		return err
	}
	s.sayAgent()
	attempt, began := s.agent.Status().Attempt, time.Now()
	if err := s.until("the agent has noticed", s.real(130*time.Second), func() bool { return s.agent.Status().Attempt != attempt }); err != nil {
		return err
	}
	s.say("agent", "%s", s.agent.Status().LastError)
	s.say("lab", "no FIN and no reset came: the agent found out by itself, %v after it connected",
		(time.Since(began) * time.Duration(s.scene.Factor)).Round(time.Second))
	s.say("lab", "holdfast doctor --path finds such a limit and names the --keepalive to set")

	patient, err := newEdge(s.relayURL.Host, func(text string) { s.say("edge", "%s", text) })
	if err != nil {
		return err
	}
	old := s.edge
	s.cancel() // the first agent
	old.close()
	if err := s.reopen(patient, 60*time.Second); err != nil {
		return err
	}
	attempt = s.agent.Status().Attempt
	if err := s.sleep(4 * time.Minute); err != nil {
		return err
	}
	s.sayAgent()
	if s.agent.Status().Attempt != attempt {
		return errors.New("the heartbeat did not keep the link of an edge with a limit of 60 s")
	}
	s.say("lab", "with a limit of 60 s, the usual one, the heartbeat is enough")
	return s.enter()
}

// reopen takes another edge, with its own idle limit, and starts a new agent.
func (s *stage) reopen(e *edge, limit time.Duration) error {
	e.idleLimit = s.real(limit)
	s.edge = e
	s.say("lab", "now an edge with an idle limit of %v", limit)
	e.start()
	return s.startAgent(s.edgeURL())
}

// oldRelayScene: no answer to the application ping, ever.
func oldRelayScene(s *stage) error {
	s.edge.noPongs = true
	s.edge.start()
	if err := s.startAgent(s.edgeURL()); err != nil {
		return err
	}
	s.say("lab", "this relay predates the application pong: it never answers that ping")
	attempt := s.agent.Status().Attempt
	for range 5 {
		if err := s.sleep(time.Minute); err != nil {
			return err
		}
		s.sayAgent()
		if s.agent.Status().Attempt != attempt {
			return errors.New("the agent gave a healthy connection up")
		}
	}
	s.say("agent", "an answer that never came on this connection is no reason to leave it; protocol pings say that the path is alive")
	return s.enter()
}

// stoppedReaderScene: the person stops ssh while a program prints.
func stoppedReaderScene(s *stage) error {
	s.edge.start()
	if err := s.startAgent(s.relayURL); err != nil {
		return err
	}
	stream, err := s.dial(s.edgeURL())
	if err != nil {
		return err
	}
	defer stream.CloseNow()
	if _, err := stream.Write([]byte{pours}); err != nil {
		return err
	}
	if _, err := io.ReadFull(stream, make([]byte, pieceBytes)); err != nil {
		return err
	}
	s.say("device", "the program prints; now Ctrl-Z: nobody reads any more, and every buffer on the way fills")
	for range 4 {
		if err := s.sleep(25 * time.Second); err != nil {
			return err
		}
		if err := stream.Err(); err != nil {
			return fmt.Errorf("cut: %w", err)
		}
		s.say("device", "stopped; a reader that is stopped proves nothing about the path, so nobody judges it")
		if err := s.sayRelay(); err != nil {
			return err
		}
		s.say("agent", "%d stream open; the relay's pings tell me that it is there while it takes nothing", s.agent.Status().Streams)
	}
	s.say("device", "fg: reading again")
	const check = 4 << 20
	buf := make([]byte, pieceBytes)
	for read := 0; read < check; read += len(buf) {
		if _, err := io.ReadFull(stream, buf); err != nil {
			return fmt.Errorf("after %d bytes: %w", read, err)
		}
		for i, b := range buf {
			if b != byte(i) {
				return fmt.Errorf("byte %d is wrong", read+i)
			}
		}
	}
	s.say("device", "4 MiB read, every byte in its place")
	return nil
}
