package source

import (
	"cmp"
	"fmt"
	"strings"

	"holdfast/internal/session/conversation"
	"holdfast/internal/session/conversation/item"
)

// ItemText is one item for a person; tool is whose conversation it is.
func ItemText(tool string, it conversation.Item) string {
	head := map[item.Kind]string{
		item.User: "you", item.Queued: "you (queued)", item.Text: cmp.Or(Plain(tool, 40), "answer"), item.Thinking: "thinking",
		item.Ask: "question", item.Fault: "error", item.Limit: "limit", item.Compaction: "compaction",
		item.Interrupted: "interrupted", item.Command: "command", item.Notice: "notice", item.Picture: "image",
	}[it.Kind]
	if head == "" {
		head = Plain(string(it.Kind), 20)
	}
	if !it.Time.IsZero() {
		head = it.Time.Local().Format("2006-01-02 15:04:05") + "  " + head
	}
	var b strings.Builder
	if call := it.Tool; call != nil {
		fmt.Fprintf(&b, "%s  %s %s (%s)", head, Plain(call.Name, 60), Plain(call.Title, 200), Plain(string(call.Status), 20))
		for _, d := range call.Diff {
			fmt.Fprintf(&b, "\n  %s  +%d -%d", Plain(d.Path, 200), d.Added, d.Removed)
			for _, h := range d.Hunks {
				b.WriteString("\n" + Block(strings.Join(h.Lines, "\n")))
			}
		}
		body(&b, call.Output)
		return b.String()
	}
	b.WriteString(head)
	body(&b, it.Body)
	for _, q := range it.Questions {
		b.WriteString("\n" + Block(q.Text))
		for _, o := range q.Options {
			b.WriteString("\n    - " + Plain(o.Label, 200))
		}
		if q.Answer != "" {
			b.WriteString("\n  answer: " + Plain(q.Answer, 400))
		}
	}
	for _, im := range it.Images {
		fmt.Fprintf(&b, "\n  [image %s %s, %d bytes]", Plain(im.MediaType, 40), Plain(im.Name, 200), im.Bytes)
	}
	return b.String()
}

func body(b *strings.Builder, t conversation.BodyText) {
	if t.Text != "" {
		b.WriteString("\n" + Block(t.Text))
	}
	if t.Blob != "" {
		fmt.Fprintf(b, "\n  [… %d bytes in all]", t.Bytes)
	}
}
