package answer

import (
	"holdfast/internal/session"
	"holdfast/internal/session/proto"
)

// Limits of what a session may say, so that a snapshot of hundreds stays small
// and a line of one fits. They are those that package session names, and some
// that it leaves to its writers.
const (
	maxTitleBytes    = 1 << 10
	maxDialogBytes   = 8 << 10
	maxLabelBytes    = 512
	maxOptions       = 32
	maxEvidence      = 8
	maxEvidenceBytes = 200
	maxMessageBytes  = 1 << 10
)

// clip bounds every text of a session.
func clip(s session.Session) session.Session {
	for _, f := range []*string{&s.Name, &s.Window, &s.Title, &s.Tool, &s.Version} {
		*f = proto.Cut(*f, proto.MaxNameBytes)
	}
	s.Server, s.Dir = proto.Cut(s.Server, proto.MaxPathBytes), proto.Cut(s.Dir, proto.MaxPathBytes)
	s.Status.Dialog = clipDialog(s.Status.Dialog)
	evidence := s.Status.Evidence
	if len(evidence) > maxEvidence {
		evidence = evidence[:maxEvidence]
	}
	s.Status.Evidence = make([]session.Evidence, len(evidence))
	for i, e := range evidence {
		e.Detail = proto.Cut(e.Detail, maxEvidenceBytes)
		s.Status.Evidence[i] = e
	}
	return s
}

func clipDialog(d *session.Dialog) *session.Dialog {
	if d == nil {
		return nil
	}
	c := *d
	c.Title, c.Text = proto.Cut(c.Title, maxTitleBytes), proto.Cut(c.Text, maxDialogBytes)
	if len(c.Options) > maxOptions {
		c.Options = c.Options[:maxOptions]
	}
	options := make([]session.Option, len(c.Options))
	for i, o := range c.Options {
		o.Label = proto.Cut(o.Label, maxLabelBytes)
		options[i] = o
	}
	c.Options = options
	return &c
}
