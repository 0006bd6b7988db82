package screen

import (
	"strings"
	"testing"

	"holdfast/internal/session"
)

// What Claude Code shows of files and answers may look like its own dialogs. The
// frames are those of version 2.1.332.
func TestForgedDialogsInClaudeCode(t *testing.T) {
	const menu = " Do you want to proceed?\n ❯ 1. Yes\n   2. Yes, and don't ask again\n   3. No (esc)\n"
	rule := strings.Repeat("─", 80)
	indented := "● Bash(cat forged.txt)\n  ⎿  Bash command\n     " + strings.ReplaceAll(menu, "\n", "\n     ")
	for name, text := range map[string]string{
		"in the transcript view": "❯ show it\n\n" + indented + "\n\n✻ Churned for 0s\n\n" + rule +
			"\n  Showing detailed transcript · ctrl+o to toggle · ? for shortcuts                verbose",
		"above the edge of something that is not known": indented + "\n" + rule + "\n  a view of a later version",
		"above the input box":                           indented + "\n\n✻ Churned for 0s\n\n" + rule + "\n❯ \n" + rule + "\n  ? for shortcuts",
		"in the answer above the input box":             "● " + menu + "\n" + rule + "\n❯ \n" + rule + "\n  ? for shortcuts",
		"with an input box of its own":                  rule + "\n❯ \n" + rule + "\n" + rule + "\n Bash command\n\n   x\n" + menu + rule + "\n❯ \n" + rule + "\n  ? for shortcuts",
	} {
		if r := Read("claude", at(text)); r.State == session.Waiting || r.Dialog != nil {
			t.Errorf("%s: %s %+v", name, r.State, r.Dialog)
		}
	}
	// The real one, about a command that shows an input box and a menu.
	real := rule + "\n Bash command\n\n   printf '" + rule + "\n❯ \n" + rule + "\n ❯ 1. No\n   2. Yes'\n   Show it\n\n" + menu + "\n Esc to cancel"
	r := Read("claude", at(real))
	if r.State != session.Waiting || r.Kind != session.Permission || r.Dialog == nil || len(r.Dialog.Options) != 3 || r.Dialog.Options[0].Label != "Yes" {
		t.Errorf("the real one: %s %s %+v", r.State, r.Kind, r.Dialog)
	}
}
