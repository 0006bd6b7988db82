package proto

// keyNames are the keys that can be pressed, by the names that tmux has for
// them, beside those of KnownKey.
var keyNames = map[string]bool{
	"Enter": true, "Escape": true, "Tab": true, "BTab": true, "Space": true, "BSpace": true,
	"Up": true, "Down": true, "Left": true, "Right": true,
	"Home": true, "End": true, "PPage": true, "NPage": true, "IC": true, "DC": true,
	"F1": true, "F2": true, "F3": true, "F4": true, "F5": true, "F6": true,
	"F7": true, "F8": true, "F9": true, "F10": true, "F11": true, "F12": true,
	"C-Space": true, "C-Up": true, "C-Down": true, "C-Left": true, "C-Right": true,
	"M-Enter": true, "M-BSpace": true, "M-Up": true, "M-Down": true, "M-Left": true, "M-Right": true,
	"S-Up": true, "S-Down": true, "S-Left": true, "S-Right": true, "S-Enter": true,
	"C-\\": true, "C-]": true, "C-_": true,
}

// KnownKey reports whether a key can be pressed by this name: those of the
// list in docs/sessions.md, C- and M- with a letter, and one digit or letter as
// itself. Everything else would be text to tmux, or a flag.
func KnownKey(name string) bool {
	if keyNames[name] {
		return true
	}
	letter := func(b byte) bool { return b >= 'a' && b <= 'z' }
	switch {
	case len(name) == 3 && (name[:2] == "C-" || name[:2] == "M-"):
		return letter(name[2])
	case len(name) == 1:
		return letter(name[0]) || name[0] >= 'A' && name[0] <= 'Z' || name[0] >= '0' && name[0] <= '9'
	}
	return false
}
