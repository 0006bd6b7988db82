package sshserver

import (
	"context"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"

	"holdfast/internal/pairing"
	"holdfast/internal/sshserver/shell"
)

const subsystemSFTP = "sftp"

const (
	// maxEnv bounds the variables of a session: there are 15 LC_ names.
	maxEnv = 32
	// maxTermBytes bounds the terminal's name.
	maxTermBytes = 64
	// sftpGrace is the time for file operations to end after their connection:
	// a slow disk has written 32 KiB by then.
	sftpGrace = 2 * time.Second
)

// session is one session channel: requests that prepare it, then one that
// starts it.
type session struct {
	live    *live
	channel ssh.Channel
	ctx     context.Context // ends with the channel
	env     []string
	tty     *shell.TTY
	started bool
	process *shell.Process
	wg      sync.WaitGroup
}

// session serves a session channel until the device closed it or the
// connection ended.
func (l *live) session(ctx context.Context, nc ssh.NewChannel) {
	ch, reqs, err := nc.Accept()
	if err != nil {
		return // the connection has ended
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := &session{live: l, channel: ch, ctx: ctx}
	for req := range reqs {
		run, ok := s.request(req)
		req.Reply(ok, nil)
		if run != nil {
			// Ends with the command or, after this loop, with the channel.
			s.wg.Go(run)
		}
	}
	cancel()
	if s.process != nil {
		s.process.Close()
	}
	s.wg.Wait()
}

// request handles one request. What it returns to run begins after the reply.
func (s *session) request(req *ssh.Request) (run func(), ok bool) {
	l := s.live
	if req.Type == "subsystem" {
		return s.subsystem(req.Payload)
	}
	if !l.paired || l.server.o.ShellOff {
		return nil, false
	}
	switch req.Type {
	case "pty-req":
		return nil, s.ptyRequest(req.Payload)
	case "env":
		return nil, s.envRequest(req.Payload)
	case "shell":
		return s.start(shell.Command{Login: true})
	case "exec":
		var m struct{ Line string }
		if ssh.Unmarshal(req.Payload, &m) != nil || strings.ContainsRune(m.Line, 0) {
			return nil, false
		}
		return s.start(shell.Command{Line: m.Line})
	case "window-change":
		var m struct{ Cols, Rows, Width, Height uint32 }
		if s.process == nil || ssh.Unmarshal(req.Payload, &m) != nil {
			return nil, false
		}
		return nil, s.process.Resize(shell.Size(m)) == nil
	case "signal":
		var m struct{ Name string }
		if s.process == nil || ssh.Unmarshal(req.Payload, &m) != nil {
			return nil, false
		}
		return nil, s.process.Signal(m.Name)
	}
	// x11-req, auth-agent-req@openssh.com and what is not known.
	return nil, false
}

func (s *session) ptyRequest(payload []byte) bool {
	var m struct {
		Term                      string
		Cols, Rows, Width, Height uint32
		Modes                     []byte
	}
	if s.started || s.tty != nil || ssh.Unmarshal(payload, &m) != nil {
		return false
	}
	s.tty = &shell.TTY{Term: termName(m.Term), Size: shell.Size{Cols: m.Cols, Rows: m.Rows, Width: m.Width, Height: m.Height}, Modes: m.Modes}
	return true
}

// termName keeps a terminal's name if it looks like one: programs look for a
// file of that name.
func termName(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("+-._", r)
	}
	if s == "" || len(s) > maxTermBytes || s[0] == '.' || strings.ContainsFunc(s, func(r rune) bool { return !plain(r) }) {
		return "dumb"
	}
	return s
}

func (s *session) envRequest(payload []byte) bool {
	var m struct{ Name, Value string }
	if s.started || len(s.env) >= maxEnv || ssh.Unmarshal(payload, &m) != nil || !shell.AcceptEnv(m.Name, m.Value) {
		return false
	}
	s.env = append(s.env, m.Name+"="+m.Value)
	return true
}

// subsystem starts a subsystem. An unpaired key gets here and to `pair` only.
func (s *session) subsystem(payload []byte) (run func(), ok bool) {
	var m struct{ Name string }
	if s.started || ssh.Unmarshal(payload, &m) != nil {
		return nil, false
	}
	l := s.live
	var serve func()
	switch further := l.server.o.Subsystems[m.Name]; {
	case m.Name == pairing.Subsystem:
		serve = func() { l.pair(s.channel) }
	case !l.paired:
		return nil, false
	case m.Name == subsystemSFTP && !l.server.o.ShellOff:
		serve = s.sftp
	case further != nil:
		serve = func() { further(s.ctx, s.channel, l.device) }
	default:
		return nil, false
	}
	s.started = true
	l.log.Info("ssh subsystem", "subsystem", m.Name)
	return func() {
		serve()
		s.finish(shell.Exit{})
	}, true
}

// sftp serves files as the agent's user, starting in the home directory.
func (s *session) sftp() {
	server, err := sftp.NewServer(s.channel, sftp.WithServerWorkingDirectory(s.live.server.account.Home))
	if err != nil {
		s.live.log.Error("sftp not started", "err", err)
		return
	}
	ended := make(chan struct{})
	// Ends with the channel's input, except that an operation of the system can
	// hang (opening a named pipe, a network file system that is away) and nothing
	// can end that: then the connection does not wait for it for ever.
	go func() {
		server.Serve()
		close(ended)
	}()
	select {
	case <-ended:
		return
	case <-s.ctx.Done():
	}
	select {
	case <-ended:
	case <-time.After(sftpGrace):
		s.live.log.Warn("sftp is left behind in a file operation that hangs")
	}
}

// start runs a command.
func (s *session) start(c shell.Command) (run func(), ok bool) {
	if s.started {
		return nil, false
	}
	s.started = true
	c.Env, c.TTY = s.env, s.tty
	began := time.Now()
	p, err := shell.Start(s.live.server.account, c)
	if err != nil {
		s.live.log.Error("command not started", "err", err)
		return nil, false
	}
	s.process = p
	// What was run is the device's business and none of the log's.
	s.live.log.Info("command started", "login", c.Login, "terminal", c.TTY != nil)
	return func() {
		exit := s.pump(p)
		s.live.log.Info("command ended", "code", exit.Code, "signal", exit.Signal, "took", time.Since(began))
	}, true
}

// pump copies the streams of a command until it and its output have ended, or
// the channel has, and then says how it ended.
func (s *session) pump(p *shell.Process) shell.Exit {
	// Ends with the channel's input, or when the command no longer reads.
	s.wg.Go(func() {
		io.Copy(p.Stdin, s.channel)
		p.Stdin.Close()
	})
	// These end with the command's output, which Process.Close ends in any case.
	var output sync.WaitGroup
	output.Go(func() { io.Copy(s.channel, p.Stdout) })
	if p.Stderr != nil {
		output.Go(func() { io.Copy(s.channel.Stderr(), p.Stderr) })
	}
	<-p.Exited()
	p.DrainTerminal(s.ctx.Done())
	output.Wait()
	if s.ctx.Err() == nil {
		p.Release()
		s.finish(p.Exit())
	}
	return p.Exit()
}

// finish ends the channel with an exit status or signal. The end of output is
// the channel's: OpenSSH's multiplexing client loses a status that comes between
// the two, and x/crypto does not guard CloseWrite against a Write, which package
// sftp may still be in. Errors mean that the channel ended first.
func (s *session) finish(e shell.Exit) {
	if e.Signal != "" {
		s.channel.SendRequest("exit-signal", false, ssh.Marshal(struct {
			Signal     string
			Core       bool
			Message    string
			LanguageID string
		}{e.Signal, e.Core, "", ""}))
	} else {
		s.channel.SendRequest("exit-status", false, ssh.Marshal(struct{ Code uint32 }{uint32(e.Code)}))
	}
	s.channel.Close()
}
