package screen

import (
	"fmt"
	"strconv"

	"holdfast/internal/session"
)

// Keys are the tmux names of the keys that answer an option of a dialog, to be
// sent one after the other.
//
//	tool                 option           keys
//	claude, codex        1 … 9            the digit; it chooses and confirms at once
//	any                  esc              Escape
//	any                  enter            Enter
//	[y/N] of scripts     y, n             the letter, then Enter
func Keys(tool string, d *session.Dialog, option string) ([]string, error) {
	if d == nil {
		return nil, fmt.Errorf("find the keys of option %q: there is no dialog", option)
	}
	for _, o := range d.Options {
		if o.ID != option {
			continue
		}
		switch option {
		case "esc":
			return []string{"Escape"}, nil
		case "enter":
			return []string{"Enter"}, nil
		case "y", "n":
			return []string{option, "Enter"}, nil
		}
		if n, err := strconv.Atoi(option); err == nil && n >= 1 && n <= 9 {
			return []string{option}, nil
		}
		return nil, fmt.Errorf("find the keys of option %q: %s has none that is known", option, tool)
	}
	return nil, fmt.Errorf("find the keys of option %q: the dialog does not offer it", option)
}
