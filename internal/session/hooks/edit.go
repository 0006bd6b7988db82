package hooks

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// A node is a value of a JSON text with its place, so that text can be put in
// and taken out and the rest stays as it is, byte for byte.
type node struct {
	start, end int
	delim      json.Delim // '{', '[' or 0
	keys       []string   // of an object
	froms      []int      // where a member begins: its key, or the item itself
	items      []*node
	text       string // of a string
}

// parseJSON reads a JSON text that is one object.
func parseJSON(b []byte) (*node, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	p := parser{b: b, d: d}
	n, err := p.value()
	if err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("text after the end")
	}
	if n.delim != '{' {
		return nil, errors.New("it is no object")
	}
	return n, nil
}

type parser struct {
	b []byte
	d *json.Decoder
}

// next is the token that follows and where it begins.
func (p parser) next() (json.Token, int, error) {
	from := int(p.d.InputOffset())
	for from < len(p.b) && strings.IndexByte(" \t\r\n,:", p.b[from]) >= 0 {
		from++
	}
	t, err := p.d.Token()
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return t, from, err
}

func (p parser) value() (*node, error) {
	t, from, err := p.next()
	if err != nil {
		return nil, err
	}
	n := &node{start: from, end: int(p.d.InputOffset())}
	n.text, _ = t.(string)
	delim, ok := t.(json.Delim)
	if !ok {
		return n, nil
	}
	n.delim = delim
	for p.d.More() {
		if delim == '{' {
			key, at, err := p.next()
			if err != nil {
				return nil, err
			}
			n.keys, n.froms = append(n.keys, key.(string)), append(n.froms, at)
		}
		item, err := p.value()
		if err != nil {
			return nil, err
		}
		if delim == '[' {
			n.froms = append(n.froms, item.start)
		}
		n.items = append(n.items, item)
	}
	if _, _, err := p.next(); err != nil {
		return nil, err
	}
	n.end = int(p.d.InputOffset())
	return n, nil
}

// member finds the value of a key; of a key that is there twice the last one,
// as readers of JSON take it.
func (n *node) member(key string) *node {
	if n == nil || n.delim != '{' {
		return nil
	}
	for i := len(n.keys) - 1; i >= 0; i-- {
		if n.keys[i] == key {
			return n.items[i]
		}
	}
	return nil
}

// insert puts a text as the last member or item of n, whose content is indented
// by depth steps.
func (n *node) insert(b []byte, text, step string, depth int) []byte {
	inner := "\n" + strings.Repeat(step, depth) + text
	if last := len(n.items) - 1; last >= 0 {
		return splice(b, n.items[last].end, n.items[last].end, ","+inner)
	}
	return splice(b, n.start+1, n.end-1, inner+"\n"+strings.Repeat(step, depth-1))
}

// remove takes the member or item i out of n.
func (n *node) remove(b []byte, i int) []byte {
	switch {
	case i > 0:
		return splice(b, n.items[i-1].end, n.items[i].end, "")
	case len(n.items) > 1:
		return splice(b, n.froms[0], n.froms[1], "")
	}
	return splice(b, n.start+1, n.end-1, "")
}

func splice(b []byte, from, to int, text string) []byte {
	out := make([]byte, 0, len(b)-(to-from)+len(text))
	out = append(out, b[:from]...)
	out = append(out, text...)
	return append(out, b[to:]...)
}

// step is what the text indents by: what stands before its first member.
func step(b []byte, root *node) string {
	if len(root.froms) > 0 {
		line := b[root.start+1 : root.froms[0]]
		if i := bytes.LastIndexByte(line, '\n'); i >= 0 && i+1 < len(line) {
			return string(line[i+1:])
		}
	}
	return "  "
}

// errShape says that settings hold something else than hooks where hooks belong.
var errShape = errors.New("its hooks are written in a way that is not known")

// add puts an entry at the end of the list of each event.
func add(b []byte, events []string, entry string) ([]byte, error) {
	if len(bytes.TrimSpace(b)) == 0 {
		b = []byte("{}\n")
	}
	for _, event := range events {
		root, err := parseJSON(b)
		if err != nil {
			return nil, err
		}
		in := step(b, root)
		list := fmt.Sprintf("%q: [\n%s%s\n%s]", event, strings.Repeat(in, 3), entry, strings.Repeat(in, 2))
		hooks := root.member("hooks")
		switch {
		case hooks == nil:
			b = root.insert(b, fmt.Sprintf("%q: {\n%s%s\n%s}", "hooks", strings.Repeat(in, 2), list, in), in, 1)
		case hooks.delim != '{':
			return nil, errShape
		case hooks.member(event) == nil:
			b = hooks.insert(b, list, in, 2)
		case hooks.member(event).delim != '[':
			return nil, errShape
		default:
			b = hooks.member(event).insert(b, entry, in, 3)
		}
	}
	return b, nil
}

// complete says whether each event has exactly one hook of ours, and that with
// this very command.
func complete(b []byte, events []string, command string, ours func(string) bool) bool {
	root, err := parseJSON(b)
	if err != nil {
		return false
	}
	found := map[string]int{}
	right := true
	if hooks := root.member("hooks"); hooks != nil && hooks.delim == '{' {
		for e, list := range hooks.items {
			for _, group := range list.items {
				inner := group.member("hooks")
				if inner == nil {
					continue
				}
				for _, hook := range inner.items {
					if c := hook.member("command"); c != nil && ours(c.text) {
						found[hooks.keys[e]]++
						right = right && c.text == command
					}
				}
			}
		}
	}
	for _, event := range events {
		right = right && found[event] == 1
	}
	return right && len(found) == len(events)
}

// take removes every hook that is ours, and what stands empty after it.
func take(b []byte, ours func(command string) bool) ([]byte, error) {
	for {
		root, err := parseJSON(b)
		if err != nil {
			return nil, err
		}
		next, found := takeOne(b, root, ours)
		if !found {
			return b, nil
		}
		b = next
	}
}

func takeOne(b []byte, root *node, ours func(string) bool) ([]byte, bool) {
	hooks := root.member("hooks")
	if hooks == nil || hooks.delim != '{' {
		return nil, false
	}
	for e, list := range hooks.items {
		if list.delim != '[' {
			continue
		}
		for g, group := range list.items {
			inner := group.member("hooks")
			if inner == nil || inner.delim != '[' {
				continue
			}
			for h, hook := range inner.items {
				command := hook.member("command")
				if command == nil || !ours(command.text) {
					continue
				}
				// The outermost that holds nothing else.
				switch {
				case len(inner.items) > 1:
					return inner.remove(b, h), true
				case len(list.items) > 1:
					return list.remove(b, g), true
				case len(hooks.items) > 1:
					return hooks.remove(b, e), true
				}
				for i := range root.keys {
					if root.items[i] == hooks {
						return root.remove(b, i), true
					}
				}
			}
		}
	}
	return nil, false
}
