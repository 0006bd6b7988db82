package claude

import (
	"encoding/json"
	"path/filepath"
	"strings"

	"holdfast/internal/session/conversation/item"
	"holdfast/internal/session/toolfile"
)

// maxAgents bounds the files of sub-agents that are looked at: each has two.
const maxAgents = 2000

// maxMeta bounds the note beside a sub-agent's transcript, in bytes: it has 200.
const maxMeta = 64 << 10

// Page implements item.Source. Sub-agents that have not answered yet are linked
// to their calls by the notes beside their transcripts.
func (l *Log) Page(before item.Cursor, limit int) (item.Page, error) {
	page, err := l.Reader.Page(before, limit)
	if err != nil {
		return page, err
	}
	var agents map[string]string
	for i := range page.Items {
		t := page.Items[i].Tool
		if page.Items[i].Kind != item.Subagent || t == nil || t.Agent != "" {
			continue
		}
		if agents == nil {
			agents = l.agents()
		}
		t.Agent = agents[page.Items[i].ID]
	}
	return page, nil
}

// agents maps calls to the sub-agents that they started.
func (l *Log) agents() map[string]string {
	out := map[string]string{}
	dir := filepath.Join(strings.TrimSuffix(l.Path(), ".jsonl"), "subagents")
	entries, err := toolfile.Dir(dir, maxAgents)
	if err != nil {
		return out
	}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), ".meta.json")
		if !ok {
			continue
		}
		b, err := toolfile.Read(filepath.Join(dir, e.Name()), maxMeta)
		if err != nil {
			continue
		}
		var meta struct {
			Call string `json:"toolUseId"`
		}
		if agent := strings.TrimPrefix(name, "agent-"); json.Unmarshal(b, &meta) == nil && meta.Call != "" && validAgent.MatchString(agent) {
			out[meta.Call] = agent
		}
	}
	return out
}
