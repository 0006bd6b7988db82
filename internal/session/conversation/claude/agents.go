package claude

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"

	"holdfast/internal/session/conversation/item"
)

// maxAgents bounds the sub-agents of a session that are looked at.
const maxAgents = 1000

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
	entries, err := os.ReadDir(dir)
	if err != nil {
		return out
	}
	for i, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), ".meta.json")
		if i == maxAgents {
			break
		}
		if !ok {
			continue
		}
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() || info.Size() > 64<<10 {
			continue
		}
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
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
