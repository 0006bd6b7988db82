package console

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"golang.org/x/term"
	"rsc.io/qr"

	"holdfast/internal/client"
	"holdfast/internal/pairing"
	"holdfast/internal/wire"
	"holdfast/internal/wsconn"
)

// Say prints text for a person to standard output.
func (a *App) Say(format string, args ...any) {
	fmt.Fprintf(a.Out, format+"\n", args...)
}

// Note prints to standard error what is not the result.
func (a *App) Note(format string, args ...any) {
	fmt.Fprintf(a.Err, "holdfast: "+format+"\n", args...)
}

// Emit prints one JSON object on a line of its own.
func (a *App) Emit(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode output: %w", err)
	}
	if _, err := a.Out.Write(append(b, '\n')); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

// quietModules is the white border of a QR code (ISO/IEC 18004, 6.3.8): with
// less, cameras do not find the code on a screen that has other text.
const quietModules = 4

// Colours that do not depend on the terminal's theme: entries of the fixed cube
// of 256 colours, bright white on black. The theme's own "white" may be grey,
// or dark.
const (
	qrColours = "\x1b[38;5;231;48;5;16m"
	qrReset   = "\x1b[0m"
)

// printQR draws text as a QR code of half blocks. A terminal gets it in fixed
// colours; anything else gets the plain characters, which are right on a dark
// background. It says so where the code is wider than the terminal.
func (a *App) printQR(text string) error {
	lines, width, err := qrLines(text)
	if err != nil {
		return err
	}
	terminal := term.IsTerminal(int(a.Out.Fd()))
	if terminal {
		if columns, _, err := term.GetSize(int(a.Out.Fd())); err == nil && columns < width {
			a.Say("  (The QR code needs a terminal of %d columns; this one has %d.)", width, columns)
			return nil
		}
	}
	return drawQR(a.Out, lines, terminal)
}

func drawQR(w io.Writer, lines []string, colours bool) error {
	var b strings.Builder
	for _, line := range lines {
		if colours {
			line = qrColours + line + qrReset
		}
		b.WriteString(line + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// qrLines draws two rows of modules a line: light modules are ink, dark ones
// background.
func qrLines(text string) (lines []string, width int, err error) {
	// The lowest level of correction: a screen has no dirt, and each level makes
	// the code larger.
	code, err := qr.Encode(text, qr.L)
	if err != nil {
		return nil, 0, fmt.Errorf("draw QR code: %w", err)
	}
	width = code.Size + 2*quietModules
	light := func(x, y int) bool {
		x, y = x-quietModules, y-quietModules
		return x < 0 || y < 0 || x >= code.Size || y >= code.Size || !code.Black(x, y)
	}
	// An odd number of rows leaves the lower half of the last line as background.
	for y := 0; y < width; y += 2 {
		var b strings.Builder
		for x := range width {
			upper, lower := light(x, y), y+1 < width && light(x, y+1)
			switch {
			case upper && lower:
				b.WriteRune('█')
			case upper:
				b.WriteRune('▀')
			case lower:
				b.WriteRune('▄')
			default:
				b.WriteByte(' ')
			}
		}
		lines = append(lines, b.String())
	}
	return lines, width, nil
}

// Ago says how long ago t was, in the largest unit that is true.
func Ago(t time.Time, now time.Time) string {
	d := now.Sub(t)
	switch {
	case d < time.Second:
		return "just now"
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s ago", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min ago", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h ago", int(d.Hours()))
	}
	return t.Local().Format("2006-01-02")
}

// StateWords says in words what a relay knows of a machine.
func StateWords(m wire.MachineInfo, now time.Time) string {
	switch m.State {
	case wire.StateReachable:
		if m.ProvenAt != nil {
			return "reachable, proven " + Ago(*m.ProvenAt, now)
		}
		return "connected, not proven"
	case wire.StateConnected:
		return "connected, not proven"
	case wire.StateUnreachable:
		s := "unreachable"
		if m.Since != nil {
			s += " since " + m.Since.Local().Format("15:04:05")
		}
		if m.Reason != "" {
			s += ": " + wire.CleanReason(m.Reason)
		}
		return s
	case wire.StateOffline:
		if m.ConnectedAt != nil {
			return "offline, last connected " + Ago(*m.ConnectedAt, now)
		}
		return "offline"
	}
	return wire.CleanReason(string(m.State))
}

// Table prints rows in columns; the last column is as long as it is.
func Table(w io.Writer, rows [][]string) {
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], len([]rune(cell)))
		}
	}
	for _, row := range rows {
		var b strings.Builder
		for i, cell := range row {
			b.WriteString(cell)
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", widths[i]-len([]rune(cell))+2))
			}
		}
		fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
	}
}

// PrintLink prints a pairing link for a person: as text, as a QR code, and what
// to type on another computer.
func (a *App) PrintLink(link string, expires time.Time) error {
	where, join := "for one device", "On another computer:  holdfast join "+client.ShellQuote(link)
	l, err := pairing.ParseLink(link)
	if err != nil {
		return fmt.Errorf("print the pairing link: %w", err)
	}
	if OnlyHere(l.Relay) {
		where, join = "this computer only", "In a second terminal:  "+a.Words("join", link)
	}
	a.Say("Pairing link, %s, valid %s (until %s):\n\n  %s\n", where,
		remaining(time.Until(expires)), expires.Local().Format("15:04:05"), link)
	if err := a.printQR(link); err != nil {
		return err
	}
	a.Say("\n%s", join)
	return nil
}

// OnlyHere reports whether a relay's URL leads to this computer from this
// computer only.
func OnlyHere(relay string) bool {
	u, err := client.ParseRelayURL(relay, true)
	return err == nil && wsconn.IsLoopback(u.Hostname())
}

// remaining says how long something is still valid.
func remaining(d time.Duration) string {
	d = d.Round(time.Second)
	if d > 2*time.Minute {
		return fmt.Sprintf("%d minutes", int(d.Round(time.Minute).Minutes()))
	}
	return fmt.Sprintf("%d seconds", int(d.Seconds()))
}
