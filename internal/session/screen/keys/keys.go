// Package keys says which keys answer an option of a dialog.
//
// It reads no screen: package screen notes the keys with each option that it
// finds. What a caller will get wrong: they are good for the screen that the
// dialog was read from, and for no other.
package keys

import (
	"fmt"

	"holdfast/internal/session"
)

// Of are the tmux names of the keys that answer an option of a dialog, to be
// sent one after the other, a moment apart. The dialog must be the one that package
// screen found on the screen as it is now. What the keys are:
//
//	claude               the digit, which chooses and confirms at once; with boxes
//	                     to tick it ticks, and "submit" is walked to
//	claude, no numbers   Up or Down from where the pointer stands, then Enter
//	codex                the letter behind the label, or the digit; (esc) is Escape
//	gemini               the digit
//	cursor, opencode     the letter behind the label, or a walk
//	amazonq, aider       the letter, then Enter
//	[y/N] of scripts     the letter or the word that it names, then Enter
//	Press any key        Enter; a pager: Space
//	any                  "esc" is Escape
func Of(tool string, d *session.Dialog, option string) ([]string, error) {
	if d == nil {
		return nil, fmt.Errorf("find the keys of option %q: there is no dialog", option)
	}
	for _, o := range d.Options {
		if o.ID != option {
			continue
		}
		if len(o.Keys) == 0 {
			return nil, fmt.Errorf("find the keys of option %q: none is known for %s", option, tool)
		}
		return append([]string(nil), o.Keys...), nil
	}
	return nil, fmt.Errorf("find the keys of option %q: the dialog does not offer it", option)
}
