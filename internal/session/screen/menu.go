package screen

import (
	"regexp"
	"strconv"
	"strings"

	"holdfast/internal/session"
)

// A menu is a list of options with a pointer on one of them, as tools draw it.
type menu struct {
	from, to int // lines of the view, to excluded
	options  []session.Option
	ticks    bool // options have boxes to tick: a digit ticks and confirms nothing
}

// pointers are what tools point with.
const pointers = `❯|›|>|▶|→|●`

var (
	// entry is the head of a numbered option: an optional pointer, a number, a dot,
	// an optional box to tick, and the label.
	entry = regexp.MustCompile(`^( *(?:(` + pointers + `|○) ?)? *)(\d{1,2})[.)] ((?:\[[ xX✔✓]?\]|[☐☑☒◯◉]) )?(.*)$`)
	// pointed is a line with the pointer before a word.
	pointed = regexp.MustCompile(`^( *(?:❯|›|→|▶) )( *)(\S.*)$`)
)

// head is the first line of an option.
type head struct {
	line, number, column int // column of the number, in runes
	pointed, tick        bool
	label                string
}

// heads finds the last run 1, 2, 3, … of numbered lines. Numbers of a list that
// scrolled up, or of a plan above, have nothing to do with it.
func heads(lines []string) []head {
	var all []head
	for i, line := range lines {
		m := entry.FindStringSubmatch(unbox(line))
		if m == nil {
			continue
		}
		n, err := strconv.Atoi(m[3])
		if err != nil {
			continue
		}
		all = append(all, head{
			line: i, number: n, column: len([]rune(m[1])),
			pointed: m[2] != "" && m[2] != "○", tick: m[4] != "", label: strings.TrimSpace(m[4] + m[5]),
		})
	}
	start := len(all)
	for start > 0 && (start == len(all) || all[start-1].number == all[start].number-1) {
		start--
		if all[start].number == 1 {
			break
		}
	}
	if start == len(all) || all[start].number != 1 {
		return nil
	}
	return all[start:]
}

// numbered finds the numbered list at the end of the lines, with a pointer on
// one of its options. Lines below a head that are indented to its label belong
// to it: the rest of a label that did not fit, or what is said about it.
func (v view) numbered() (menu, bool) {
	hs := heads(v.lines)
	if len(hs) < 2 || len(hs) > maxOptions {
		return menu{}, false
	}
	m := menu{from: hs[0].line, to: hs[len(hs)-1].line + 1}
	pointer, width := -1, v.width()
	for i, h := range hs {
		if h.column != hs[0].column {
			return menu{}, false
		}
		if h.pointed {
			if pointer >= 0 {
				return menu{}, false
			}
			pointer = len(m.options)
		}
		m.ticks = m.ticks || h.tick
		o := session.Option{ID: strconv.Itoa(h.number), Label: h.label, Selected: h.pointed}
		if h.number <= 9 {
			o.Keys = []string{o.ID}
		}
		stop := len(v.lines)
		if i+1 < len(hs) {
			stop = hs[i+1].line
		}
		var send *session.Option
		for j := h.line + 1; j < stop; j++ {
			line := unbox(v.lines[j])
			if line == "" || rule(line, dashed) {
				break
			}
			if m.ticks && h.tick {
				if p := strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "❯")); p == "Submit" || p == "Next" {
					send = &session.Option{ID: strings.ToLower(p), Label: p, Selected: strings.HasPrefix(strings.TrimSpace(line), "❯")}
					m.to = max(m.to, j+1)
					continue
				}
			}
			if indent(line) <= h.column {
				break
			}
			m.to = max(m.to, j+1)
			word, _, _ := strings.Cut(strings.TrimSpace(line), " ")
			if o.Detail == "" && cells(v.lines[j-1])+1+cells(word) > width-5 {
				o.Label += " " + strings.TrimSpace(line)
			} else {
				o.Detail = strings.TrimSpace(o.Detail + " " + strings.TrimSpace(line))
			}
		}
		m.options = append(m.options, o)
		if send != nil {
			if send.Selected {
				if pointer >= 0 {
					return menu{}, false
				}
				pointer = len(m.options)
			}
			m.options = append(m.options, *send)
		}
	}
	if pointer < 0 {
		return menu{}, false
	}
	// What no digit chooses is walked to.
	for i := range m.options {
		if len(m.options[i].Keys) == 0 {
			m.options[i].Keys = walk(pointer, i)
		}
	}
	return m, true
}

// listed finds a list without numbers around the last line that is pointed at:
// lines with nothing between them whose labels begin in the same column.
func (v view) listed() (menu, bool) {
	for i := len(v.lines) - 1; i >= 0 && len(v.lines)-i <= maxOptions+8; i-- {
		at := pointed.FindStringSubmatch(unbox(v.lines[i]))
		if at == nil {
			continue
		}
		column := len([]rune(at[1])) + len(at[2])
		beside := func(j int) bool {
			if j < 0 || j >= len(v.lines) {
				return false
			}
			line := unbox(v.lines[j])
			return line != "" && indent(line) == column && !rule(line, dashed)
		}
		m := menu{from: i, to: i + 1}
		for beside(m.from-1) && i-m.from < maxOptions {
			m.from--
		}
		for beside(m.to) && m.to-i < maxOptions {
			m.to++
		}
		if m.to-m.from < 2 || m.to-m.from > maxOptions {
			return menu{}, false
		}
		for j := m.from; j < m.to; j++ {
			label := strings.TrimSpace(unbox(v.lines[j]))
			if j == i {
				label = at[3]
			}
			m.options = append(m.options, session.Option{ID: strconv.Itoa(j - m.from + 1), Label: label, Selected: j == i, Keys: walk(i, j)})
		}
		return m, true
	}
	return menu{}, false
}

// walk is how to get from one entry of a list to another and choose it.
func walk(from, to int) []string {
	var keys []string
	for ; from < to; from++ {
		keys = append(keys, "Down")
	}
	for ; from > to; from-- {
		keys = append(keys, "Up")
	}
	return append(keys, "Enter")
}

// offerEscape adds the way out that a footer names, where no option denies.
func offerEscape(d *session.Dialog, footer string) {
	for _, o := range d.Options {
		if o.Role == session.Deny {
			return
		}
	}
	if m := escape.FindString(footer); m != "" {
		d.Options = append(d.Options, session.Option{ID: "esc", Label: m, Role: session.Deny, Keys: []string{"Escape"}})
	}
}

var escape = regexp.MustCompile(`(?i)\besc(?:ape)? (?:to )?(?:cancel|back|exit|go back|dismiss|reject|deny|close|decline)\b`)

// roles gives the options of a permission their meaning, by the words that
// tools use, and says whether something is allowed or denied by them.
func roles(options []session.Option) (permission bool) {
	yes, no := false, false
	for i := range options {
		r := role(options[i].Label)
		options[i].Role = r
		yes = yes || r == session.Approve || r == session.ApproveAlways
		no = no || r == session.Deny
	}
	return yes && no
}

// wordEnd makes the first word of a label stand alone.
var wordEnd = strings.NewReplacer(",", " ", ".", " ", ":", " ", ";", " ", "(", " ", "!", " ")

func role(label string) session.Role {
	l := strings.ToLower(strings.TrimSpace(label))
	if strings.HasPrefix(l, "type something") || strings.HasPrefix(l, "tell claude") {
		return session.FreeText
	}
	word, _, _ := strings.Cut(wordEnd.Replace(l), " ")
	switch word {
	case "no", "deny", "reject", "cancel", "don't", "skip", "decline", "abort", "exit", "quit", "dismiss":
		return session.Deny
	case "yes", "allow", "approve", "accept", "run", "proceed", "apply", "trust", "always", "auto-run":
		if word == "always" || word == "auto-run" || hasAny(l, "don't ask", "do not ask", "always", "this session", "accept edits",
			"auto-accept", "auto-approve", "auto mode", "without asking", "any time", "allowlist", "from now on", "switch to") {
			return session.ApproveAlways
		}
		return session.Approve
	}
	return ""
}
