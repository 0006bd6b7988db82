package sshserver

import (
	"errors"
	"time"

	"golang.org/x/crypto/ssh"

	"holdfast/internal/pairing"
	"holdfast/internal/sshserver/authkeys"
)

// requestGrace bounds the wait for the device's line, which it sends at once.
const requestGrace = 15 * time.Second

// pair serves the `pair` subsystem: one line each way.
func (l *live) pair(ch ssh.Channel) {
	grace := time.AfterFunc(requestGrace, func() { ch.Close() })
	req, err := pairing.ReadRequest(ch)
	if !grace.Stop() {
		return
	}
	var answer pairing.Response
	if err != nil {
		answer = pairing.Response{Code: pairing.CodeSyntax, Message: "the request is not one that this machine understands; update holdfast on both sides"}
	} else {
		answer = l.tryPair(req)
	}
	if err := pairing.WriteResponse(ch, answer); err != nil {
		l.log.Info("pairing answer not sent", "err", err)
	}
}

func (l *live) tryPair(req pairing.Request) pairing.Response {
	s := l.server
	code, closed := s.links.try(req.Proof, pairing.Binding{
		SessionID: l.conn.SessionID(),
		DeviceKey: l.key.Blob(),
		HostKey:   l.hostKey.Blob(),
		Machine:   s.o.Machine,
	}, l.key, time.Now())
	for _, secret := range closed {
		l.log.Warn("pairing link closed", "err", "five wrong proofs")
		s.linkClosed(secret)
	}
	if code != "" {
		l.log.Warn("pairing refused", "verdict", code)
		return pairing.Response{Code: code, Message: refusalText(code, len(closed) > 0)}
	}
	device, err := s.o.Devices.add(l.key, l.deviceID, req.Name, time.Now())
	if err != nil {
		l.log.Error("device not stored", "err", err)
		message := "the machine could not store the device's key; its log says why"
		if errors.Is(err, ErrTooManyDevices) {
			message = err.Error()
		}
		return pairing.Response{Code: pairing.CodeFailed, Message: message}
	}
	answer := pairing.Response{OK: true, Machine: s.o.Machine, User: s.account.Name, Shell: !s.o.ShellOff}
	if s.o.SSHD != "" {
		answer.SSHD = s.sshd.Install(authkeys.Entry{Key: device.Key, Device: device.ID, Name: device.Name})
	}
	l.log.Info("device paired", "verdict", "ok", "name", device.Name)
	if s.o.Paired != nil {
		s.o.Paired(device)
	}
	return answer
}

func refusalText(code pairing.Code, closed bool) string {
	switch {
	case closed:
		return "the proof is wrong, and it was one too many: the link is closed; make a new one with `holdfast pair`"
	case code == pairing.CodeProof:
		return "the proof is wrong: the link belongs to another machine or is mistyped"
	case code == pairing.CodeBound:
		return "the link was used by another device already; make a new one with `holdfast pair`"
	}
	return "no link is open any more; make a new one with `holdfast pair`"
}
