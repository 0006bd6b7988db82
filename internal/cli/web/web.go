// Package web is the command that writes the page for phones out of the program,
// for a host of one's own.
//
// It changes nothing but the directory that it is given. What a caller will get
// wrong: whoever serves the written page is trusted as the relay would be, so
// the point of an export is to serve it from somewhere that is.
package web

import (
	"errors"

	"holdfast/internal/console"
	"holdfast/internal/webapp"
)

// Web is `holdfast web`.
type Web struct {
	Export Export `cmd:"" help:"Write the page for phones into a directory, for any host of static files."`
}

// Export is `holdfast web export`.
type Export struct {
	Dir   string   `arg:"" help:"Directory to write to; made where it is missing."`
	Relay []string `placeholder:"URL" sep:"none" help:"Let the page connect to this relay only; may be repeated."`
}

// Run writes the page.
func (c *Export) Run(a *console.App) error {
	written, err := webapp.Export(c.Dir, c.Relay)
	switch {
	case errors.Is(err, webapp.ErrNotBuilt):
		return &console.Failure{Code: console.ExitFailed, Err: err, Hint: "build it with make, on a computer with Node"}
	case errors.Is(err, webapp.ErrNotEmpty):
		return &console.Failure{Code: console.ExitFailed, Err: err, Hint: "name an empty directory, or one that does not exist yet"}
	case err != nil:
		return err
	}
	if a.JSON {
		return a.Emit(map[string]any{"dir": c.Dir, "files": written, "digest": webapp.Digest()})
	}
	a.Say("%d files in %s", len(written), c.Dir)
	a.Say("digest %s", webapp.Digest())
	a.Say("Serve it over https; %s/_headers says with which headers.", c.Dir)
	return nil
}
