// Package scrollback turns what tmux captured of a pane, colours included
// (capture-pane -e), into rows of styled runs that say in which column they
// begin: the conversation of every program that keeps no transcript.
//
// It runs no tmux and draws nothing. What a caller will get wrong: a run's width
// is in cells of the terminal, where CJK and emoji take two and combining
// characters none, so runs are placed by Col and not one after the other.
package scrollback

import (
	"strings"
	"unicode/utf8"

	"github.com/rivo/uniseg"
)

// Limits of what is made of one capture.
const (
	// MaxRows is how many rows are kept, the newest ones.
	MaxRows = 10_000
	// maxLine is where a line is cut, in bytes: tmux makes none that long.
	maxLine = 64 << 10
	// maxLink bounds the address of a link, in bytes.
	maxLink = 2048
)

// A Row is one line of the terminal. Trailing blanks without a style are left out.
type Row struct {
	Runs []Run `json:"runs"`
}

// A Run is text of one style.
type Run struct {
	Text  string `json:"text"`
	Col   int    `json:"col"`   // the first cell, from 0
	Width int    `json:"width"` // in cells
	Style
}

// A Style is how text looks. The zero Style is the terminal's own.
type Style struct {
	// FG, BG and UL are colours: "" is the terminal's own, "0" to "255" of its
	// palette, "#rrggbb" any.
	FG        string `json:"fg,omitempty"`
	BG        string `json:"bg,omitempty"`
	UL        string `json:"ul,omitempty"` // of the underline
	Bold      bool   `json:"bold,omitempty"`
	Dim       bool   `json:"dim,omitempty"`
	Italic    bool   `json:"italic,omitempty"`
	Underline string `json:"underline,omitempty"` // single, double, curly, dotted, dashed
	Blink     bool   `json:"blink,omitempty"`
	Reverse   bool   `json:"reverse,omitempty"`
	Hidden    bool   `json:"hidden,omitempty"`
	Strike    bool   `json:"strike,omitempty"`
	Overline  bool   `json:"overline,omitempty"`
	Link      string `json:"link,omitempty"` // an http, https or mailto address
}

// Text is what a row says, blanks between runs included.
func (r Row) Text() string {
	var b strings.Builder
	col := 0
	for _, run := range r.Runs {
		for ; col < run.Col; col++ {
			b.WriteByte(' ')
		}
		b.WriteString(run.Text)
		col = run.Col + run.Width
	}
	return strings.TrimRight(b.String(), " ")
}

// Parse reads a capture. It never fails: what it does not understand it leaves
// out, control characters included, so the texts are safe to print.
func Parse(capture string) []Row {
	lines := strings.Split(strings.TrimSuffix(capture, "\n"), "\n")
	if capture == "" {
		return nil
	}
	drop := max(0, len(lines)-MaxRows)
	var p parser
	rows := make([]Row, 0, len(lines)-drop)
	for i, line := range lines {
		if len(line) > maxLine {
			line = line[:maxLine]
		}
		// Styles go on from line to line, so those left out are read too.
		row := p.line(strings.TrimSuffix(line, "\r"))
		if i >= drop {
			rows = append(rows, row)
		}
	}
	return rows
}

type parser struct {
	style Style
	lines bool // line-drawing characters are selected

	runs []Run
	col  int
}

func (p *parser) line(s string) Row {
	p.runs, p.col = nil, 0
	for len(s) > 0 {
		if s[0] == 0x1b {
			s = s[p.escape(s):]
			continue
		}
		i := strings.IndexByte(s, 0x1b)
		if i < 0 {
			i = len(s)
		}
		p.text(s[:i])
		s = s[i:]
	}
	return Row{Runs: trim(p.runs)}
}

// trim takes blanks off the end where nothing shows.
func trim(runs []Run) []Run {
	for len(runs) > 0 {
		last := &runs[len(runs)-1]
		if last.BG != "" || last.Reverse || last.Underline != "" || last.Strike || last.Overline {
			break
		}
		t := strings.TrimRight(last.Text, " ")
		last.Width -= len(last.Text) - len(t)
		if last.Text = t; t != "" {
			break
		}
		runs = runs[:len(runs)-1]
	}
	if runs == nil {
		runs = []Run{}
	}
	return runs
}

// text adds what shows, one character of the reader's at a time.
func (p *parser) text(s string) {
	state := -1
	for len(s) > 0 {
		var cluster string
		var width int
		if s[0] >= 0x20 && s[0] < 0x7f && (len(s) == 1 || s[1] < 0x80) {
			cluster, s, width, state = s[:1], s[1:], 1, -1 // nothing can combine with it
		} else {
			cluster, s, width, state = uniseg.FirstGraphemeClusterInString(s, state)
		}
		switch c := cluster[0]; {
		case c == '\t':
			n := 8 - p.col%8
			p.add(strings.Repeat(" ", n), n)
			continue
		case c == 0x0e || c == 0x0f: // shift out, shift in
			p.lines = c == 0x0e
			continue
		case c < 0x20 || c == 0x7f:
			continue
		case p.lines && c < 0x80:
			if r, ok := drawing[c]; ok {
				cluster, width = r, 1
			}
		}
		if r, _ := utf8.DecodeRuneInString(cluster); r == utf8.RuneError || r >= 0x80 && r < 0xa0 {
			cluster, width = "\uFFFD", 1
		}
		p.add(clean(cluster), width)
	}
}

// clean takes out of a character what changes the direction of the text around
// it.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 || r == 0x200e || r == 0x200f || r == 0x061c {
			return -1
		}
		return r
	}, s)
}

func (p *parser) add(s string, width int) {
	if s == "" {
		return
	}
	if n := len(p.runs); n > 0 && p.runs[n-1].Style == p.style {
		p.runs[n-1].Text += s
		p.runs[n-1].Width += width
	} else {
		p.runs = append(p.runs, Run{Text: s, Col: p.col, Width: width, Style: p.style})
	}
	p.col += width
}

// drawing is the DEC set of line-drawing characters.
var drawing = map[byte]string{
	'`': "◆", 'a': "▒", 'f': "°", 'g': "±", 'h': "␤", 'i': "␋", 'j': "┘", 'k': "┐", 'l': "┌", 'm': "└", 'n': "┼",
	'o': "⎺", 'p': "⎻", 'q': "─", 'r': "⎼", 's': "⎽", 't': "├", 'u': "┤", 'v': "┴", 'w': "┬", 'x': "│", 'y': "≤", 'z': "≥",
	'{': "π", '|': "≠", '}': "£", '~': "·", '+': "→", ',': "←", '-': "↑", '.': "↓", '0': "█",
}
