package source

import (
	"strings"
	"testing"
	"time"

	"holdfast/internal/session/conversation"
	"holdfast/internal/session/conversation/item"
)

func TestWhoSaysWhatInAConversation(t *testing.T) {
	at := time.Date(2026, 3, 4, 5, 6, 7, 0, time.Local)
	for _, c := range []struct {
		tool string
		it   conversation.Item
		want string
	}{
		{"claude", conversation.Item{Kind: item.Text, Body: item.Body{Text: "All done."}, Time: at}, "2026-03-04 05:06:07  claude\n  All done."},
		{"", conversation.Item{Kind: item.Text, Body: item.Body{Text: "All done."}}, "answer\n  All done."},
		{"claude", conversation.Item{Kind: item.User, Body: item.Body{Text: "go on"}}, "you\n  go on"},
	} {
		if got := strings.TrimRight(ItemText(c.tool, c.it), "\n"); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
