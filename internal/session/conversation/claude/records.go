package claude

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"strings"

	"holdfast/internal/session/conversation/item"
	"holdfast/internal/session/conversation/jsonl"
)

// A decoder turns one record into items.
type decoder struct {
	l   *jsonl.Line
	e   *envelope
	rec *jsonl.Record
}

// message is what is said in a user's or an assistant's record.
type message struct {
	ID      string          `json:"id"`
	Role    string          `json:"role"`
	Model   string          `json:"model"`
	Content json.RawMessage `json:"content"`
	Stop    string          `json:"stop_reason"`
}

// block is one piece of a message.
type block struct {
	Type     string          `json:"type"`
	Text     string          `json:"text"`
	Thinking string          `json:"thinking"`
	ID       string          `json:"id"`
	Name     string          `json:"name"`
	Input    json.RawMessage `json:"input"`
	Result   string          `json:"tool_use_id"`
	Content  json.RawMessage `json:"content"`
	IsError  bool            `json:"is_error"`
	Title    string          `json:"title"`
	Source   struct {
		Type      string `json:"type"`
		MediaType string `json:"media_type"`
		Data      string `json:"data"`
		URL       string `json:"url"`
	} `json:"source"`
}

// blocks reads content that is a string or a list of blocks.
func blocks(raw json.RawMessage) []block {
	if len(raw) == 0 {
		return nil
	}
	if raw[0] == '"' {
		var s string
		if json.Unmarshal(raw, &s) != nil || s == "" {
			return nil
		}
		return []block{{Type: "text", Text: s}}
	}
	var parts []json.RawMessage
	if json.Unmarshal(raw, &parts) != nil {
		return nil
	}
	out := make([]block, 0, len(parts))
	for _, p := range parts {
		var b block
		if len(p) > 0 && p[0] == '"' {
			b.Type = "text"
			loose(p, &b.Text)
		} else if !loose(p, &b) {
			continue
		}
		out = append(out, b)
	}
	return out
}

func (d *decoder) add(it item.Item) {
	if it.ID == "" {
		it.ID = fmt.Sprintf("@%d", d.l.Start)
	}
	if it.Time.IsZero() {
		it.Time = d.rec.Time
	}
	d.rec.Items = append(d.rec.Items, it)
}

// id names the n-th item of a record.
func (d *decoder) id(n int) string {
	id := d.rec.ID
	if id == "" {
		id = fmt.Sprintf("@%d", d.l.Start)
	}
	if n > 0 {
		id = fmt.Sprintf("%s.%d", id, n)
	}
	return id
}

// user decodes what the person wrote, what tools answered, and what the tool
// itself puts into the person's mouth.
func (d *decoder) user() {
	var m message
	if len(d.e.Message) > 0 && d.e.Message[0] == '"' {
		m.Content = d.e.Message
	} else if !loose(d.e.Message, &m) {
		return
	}
	parts := blocks(m.Content)
	if d.e.Summary {
		d.summary(parts)
		return
	}
	var said []string
	var images []item.Image
	results := 0
	for _, b := range parts {
		switch b.Type {
		case "text":
			said = append(said, b.Text)
		case "image", "document":
			images = append(images, d.image(b))
		case "tool_result":
			results++
		}
	}
	for _, b := range parts {
		if b.Type == "tool_result" && b.Result != "" {
			d.result(b, results == 1)
		}
	}
	if d.e.Meta || d.e.OnlyVisible {
		return
	}
	d.said(said, images)
	if len(d.rec.Items) == 0 && len(d.rec.Results) > 0 {
		d.rec.Turn = jsonl.Turn{State: item.TurnWorking, Detail: "a tool has answered"}
	}
}

func (d *decoder) image(b block) item.Image {
	src := b.Source.Data
	if src == "" {
		src = b.Source.URL
	}
	img := d.l.Image(b.Source.MediaType, src)
	if b.Title != "" {
		img.Name = item.Line(d.l.Text(b.Title), 200)
	}
	return img
}

// continued begins the summary that replaces what was compacted.
const continued = "This session is being continued from a previous conversation"

func (d *decoder) summary(parts []block) {
	d.rec.Summary = true
	it := item.Item{ID: d.id(0), Kind: item.Compaction}
	for _, b := range parts {
		if b.Type == "text" {
			it.Body = d.l.Body(b.Text)
			break
		}
	}
	d.add(it)
}

// said decodes texts in the person's name.
func (d *decoder) said(texts []string, images []item.Image) {
	var plain []string
	for _, t := range texts {
		if strings.HasPrefix(strings.TrimSpace(t), continued) {
			d.summary([]block{{Type: "text", Text: t}})
			continue
		}
		kind, text := classify(t)
		switch kind {
		case "":
		case item.User:
			plain = append(plain, text)
		case item.Interrupted:
			d.add(item.Item{ID: d.id(len(d.rec.Items)), Kind: kind, Body: d.l.Body(strings.Trim(text, "[] "))})
			d.rec.Turn = jsonl.Turn{State: item.TurnInterrupted, Detail: "interrupted by the person"}
		default:
			d.add(item.Item{ID: d.id(len(d.rec.Items)), Kind: kind, Body: d.l.Body(text)})
			if kind == item.Notice {
				d.rec.Turn = jsonl.Turn{State: item.TurnWorking, Detail: "background work reported"}
			}
		}
	}
	if len(plain) == 0 && len(images) == 0 {
		return
	}
	it := item.Item{ID: d.id(len(d.rec.Items)), Kind: item.User, Body: d.l.Body(strings.Join(plain, "\n")), Images: images}
	d.add(it)
	d.rec.Prompt = true
	d.rec.Turn = jsonl.Turn{State: item.TurnWorking, Detail: "a message was sent"}
}

// assistant decodes one piece of the model's message.
func (d *decoder) assistant() {
	var m message
	if !loose(d.e.Message, &m) {
		return
	}
	d.rec.Message = m.ID
	if m.ID == "" {
		d.rec.Message = d.rec.ID
	}
	model := item.Line(m.Model, 80)
	if model == "<synthetic>" {
		model = ""
	}
	if d.e.APIError {
		d.fault(blocks(m.Content))
		return
	}
	called, wrote := false, false
	for _, b := range blocks(m.Content) {
		switch b.Type {
		case "text":
			text := d.l.Text(b.Text)
			if strings.TrimSpace(text) == "" || text == "(no content)" || text == "No response requested." {
				continue
			}
			wrote = true
			d.add(item.Item{ID: d.contentID("t", text), Kind: item.Text, Body: d.l.Body(b.Text), Model: model})
		case "thinking":
			if text := d.l.Text(b.Thinking); strings.TrimSpace(text) != "" {
				d.add(item.Item{ID: d.contentID("h", text), Kind: item.Thinking, Body: d.l.Body(b.Thinking), Model: model})
			}
		case "tool_use", "server_tool_use", "mcp_tool_use":
			called = true
			d.call(b)
		case "image":
			d.add(item.Item{ID: d.id(len(d.rec.Items)), Kind: item.Picture, Images: []item.Image{d.image(b)}})
		default:
			if strings.HasSuffix(b.Type, "tool_result") && b.Result != "" {
				d.result(b, false)
			}
		}
	}
	switch {
	case called || m.Stop == "tool_use":
		d.rec.Turn = jsonl.Turn{State: item.TurnWorking, Detail: "a tool was called"}
	case m.Stop == "refusal" || m.Stop == "max_tokens":
		d.rec.Turn = jsonl.Turn{State: item.TurnDone, Detail: "stopped: " + m.Stop}
	case m.Stop != "" && m.Stop != "pause_turn":
		d.rec.Turn = jsonl.Turn{State: item.TurnDone, Detail: "the answer is complete"}
	case wrote:
		// Old versions never say why a message stopped, so it may be the last one
		// or not.
		d.rec.Turn = jsonl.Turn{State: item.TurnNone, Detail: "an answer whose end is not recorded"}
	}
}

// contentID names a block by its message and what it says, so that a block that
// is written twice is one item.
func (d *decoder) contentID(kind, text string) string {
	h := fnv.New64a()
	h.Write([]byte(kind))
	h.Write([]byte(text))
	return fmt.Sprintf("%s.%x", d.rec.Message, h.Sum64())
}

// limits are the errors that stop the tool until the person does something.
var limits = map[string]bool{"rate_limit": true, "billing_error": true, "authentication_failed": true, "oauth_org_not_allowed": true}

func (d *decoder) fault(parts []block) {
	text := ""
	for _, b := range parts {
		if b.Type == "text" {
			text = b.Text
		}
	}
	code := ""
	loose(d.e.Error, &code)
	kind, state := item.Fault, item.TurnDone
	if limits[code] || strings.Contains(text, "Please run /login") {
		kind, state = item.Limit, item.TurnLimit
	}
	d.add(item.Item{ID: d.id(0), Kind: kind, Body: d.l.Body(text)})
	d.rec.Turn = jsonl.Turn{State: state, Detail: item.Line("error: "+d.l.Text(text), 200)}
}

// system decodes what the tool says about itself.
func (d *decoder) system() {
	text := ""
	loose(d.e.Content, &text)
	switch d.e.Subtype {
	case "compact_boundary":
		d.rec.Boundary = true
		var meta struct {
			Trigger   string `json:"trigger"`
			PreTokens int    `json:"preTokens"`
		}
		loose(d.e.Compact, &meta)
		says := "compacted"
		if meta.Trigger != "" {
			says += " (" + item.Line(meta.Trigger, 40) + ")"
		}
		d.add(item.Item{ID: d.id(0), Kind: item.Compaction, Body: item.NewBody(says)})
	case "local_command":
		if kind, text := classify(text); kind != "" && kind != item.User {
			d.add(item.Item{ID: d.id(0), Kind: kind, Body: d.l.Body(text)})
		}
	case "away_summary":
		d.add(item.Item{ID: d.id(0), Kind: item.Notice, Body: d.l.Body(text)})
		d.rec.Turn = jsonl.Turn{State: item.TurnDone, Detail: "the turn ended"}
	case "turn_duration", "stop_hook_summary":
		d.rec.Turn = jsonl.Turn{State: item.TurnDone, Detail: "the turn ended"}
	case "informational", "warning", "error", "":
		if text != "" && !d.e.Meta && (d.e.Level == "warning" || d.e.Level == "error" || d.e.Subtype != "") {
			d.add(item.Item{ID: d.id(0), Kind: item.Notice, Body: d.l.Body(text)})
		}
	}
}

// attachment decodes what was added to a message; only what the person typed
// while the tool was busy is shown.
func (d *decoder) attachment() {
	var a struct {
		Type   string          `json:"type"`
		Prompt json.RawMessage `json:"prompt"`
		Mode   string          `json:"commandMode"`
	}
	if !loose(d.e.Attachment, &a) || a.Type != "queued_command" {
		return
	}
	var texts []string
	var images []item.Image
	for _, b := range blocks(a.Prompt) {
		switch b.Type {
		case "text":
			texts = append(texts, b.Text)
		case "image":
			images = append(images, d.image(b))
		}
	}
	d.said(texts, images)
}

// queue decodes what waits until the tool is free.
func (d *decoder) queue() {
	if d.e.Operation != "enqueue" {
		d.rec.Queue = jsonl.Taken
		return
	}
	d.rec.Queue = jsonl.Enqueued
	var texts []string
	for _, b := range blocks(d.e.Content) {
		if b.Type == "text" {
			texts = append(texts, b.Text)
		}
	}
	kind, text := classify(strings.Join(texts, "\n"))
	if kind != item.User {
		return
	}
	d.add(item.Item{ID: d.id(0), Kind: item.Queued, Pending: true, Body: d.l.Body(text)})
}
