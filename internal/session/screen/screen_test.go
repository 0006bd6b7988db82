package screen

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"holdfast/internal/session"
)

// update writes what Read says now into the expectations, to be looked through
// before they are committed.
var update = flag.Bool("update", false, "write the readings into testdata/screens/expected.json")

const fixtures = "../../../testdata/screens"

// A fixture is a screen of testdata/screens with the reading that is expected.
type fixture struct {
	Cursor    [2]int         `json:"cursor"`
	Size      [2]int         `json:"size"`
	Alternate bool           `json:"alternate"`
	Styled    map[int]string `json:"styled,omitempty"` // rows with their escape sequences
	Reading   *expectation   `json:"reading,omitempty"`
}

// expectation is a Reading in JSON.
type expectation struct {
	State    session.State       `json:"state,omitempty"`
	Kind     session.Kind        `json:"kind,omitempty"`
	Detail   string              `json:"detail,omitempty"`
	Composer *string             `json:"composer,omitempty"`
	Row      int                 `json:"row,omitempty"`
	Tasks    int                 `json:"tasks,omitempty"`
	Answered int                 `json:"answered,omitempty"`
	Title    string              `json:"title,omitempty"`
	Text     string              `json:"text,omitempty"`
	Options  []session.Option    `json:"options,omitempty"`
	Keys     map[string][]string `json:"keys,omitempty"`
}

func expect(r Reading) expectation {
	e := expectation{State: r.State, Kind: r.Kind, Detail: r.Detail, Tasks: r.BackgroundTasks, Answered: r.Answered}
	if r.Composer != nil {
		e.Composer, e.Row = &r.Composer.Text, r.Composer.Row
	}
	if d := r.Dialog; d != nil {
		e.Title, e.Text, e.Options, e.Keys = d.Title, d.Text, d.Options, map[string][]string{}
		for _, o := range d.Options {
			e.Keys[o.ID] = o.Keys
		}
	}
	return e
}

func (f fixture) screen(text string) Screen {
	s := Screen{
		Lines:   strings.Split(strings.TrimSuffix(text, "\n"), "\n"),
		CursorX: f.Cursor[0], CursorY: f.Cursor[1], Cols: f.Size[0], Rows: f.Size[1], Alternate: f.Alternate,
	}
	if len(f.Styled) > 0 {
		s.Styled = slices.Clone(s.Lines)
		for i, row := range f.Styled {
			if i < len(s.Styled) {
				s.Styled[i] = row
			}
		}
	}
	return s
}

// load reads the fixtures and their texts by name.
func load(t testing.TB) (map[string]fixture, map[string]string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(fixtures, "expected.json"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]fixture{}
	if err := json.Unmarshal(b, &all); err != nil {
		t.Fatalf("read expected.json: %v", err)
	}
	files, err := filepath.Glob(filepath.Join(fixtures, "*.txt"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no screens in %s: %v", fixtures, err)
	}
	texts := map[string]string{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		texts[strings.TrimSuffix(filepath.Base(f), ".txt")] = string(b)
	}
	return all, texts
}

// toolOf is the tool that a fixture's name begins with.
func toolOf(name string) string {
	tool, _, _ := strings.Cut(name, "--")
	return tool
}

func TestScreensOfRealTools(t *testing.T) {
	all, texts := load(t)
	for name := range all {
		if _, ok := texts[name]; !ok {
			t.Errorf("%s is expected and not there", name)
		}
	}
	for name, text := range texts {
		f, ok := all[name]
		if !ok {
			t.Errorf("%s.txt has no expectation", name)
			continue
		}
		got := expect(Read(toolOf(name), f.screen(text)))
		if *update {
			f.Reading = &got
			all[name] = f
			continue
		}
		gotJSON, err := json.MarshalIndent(got, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		wantJSON, err := json.MarshalIndent(f.Reading, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(gotJSON, wantJSON) {
			t.Errorf("%s: got\n%s\nwant\n%s", name, gotJSON, wantJSON)
		}
	}
	if *update {
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		e.SetIndent("", " ")
		if err := e.Encode(all); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(fixtures, "expected.json"), b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// outside are screens of a collection that may lie beside the repository: state
// and kind, and what stands in the input box ("-" for no input box).
var outside = map[string]string{
	"aider--first_message":          "idle//",
	"aider--multi-line-input":       "//-",
	"aider--second_message":         "idle//",
	"amazonq--confirmation_box":     "waiting/permission/-",
	"amazonq--first_message":        "idle//",
	"amazonq--multi-line-input":     "idle//",
	"amazonq--second_message":       "idle//",
	"amazonq--thinking":             "working//-",
	"amp--first_message":            "idle//",
	"amp--multi-line-input":         "working//",
	"amp--second_message":           "idle//",
	"claude--auto-accept-edits":     "idle//",
	"claude--first_message":         "idle//",
	"claude--multi-line-input":      "idle//",
	"claude--remove-task-tool-call": "idle//",
	"claude--second_message":        "idle//",
	"codex--confirmation_box":       "waiting/permission/-",
	"codex--first_message":          "idle//A for Apple",
	"codex--multi-line-input":       "idle//",
	"codex--remove-task-tool-call":  "//-",
	"codex--second_message":         "idle//",
	"codex--thinking":               "working//-",
	"cursor--confirmation_box":      "waiting/permission/-",
	"cursor--first_message":         "idle//",
	"cursor--multi-line-input":      "idle//",
	"cursor--second_message":        "idle//",
	"cursor--thinking":              "working//",
	"goose--first_message":          "idle//",
	"goose--multi-line-input":       "idle//",
	"goose--second_message":         "idle//",
	"opencode--first_message":       "idle//",
	"opencode--second_message":      "idle//",
}

func TestScreensBesideTheRepository(t *testing.T) {
	files, err := filepath.Glob("../../../../*/fixtures/screens/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txt")
		want, ok := outside[name]
		if !ok {
			t.Errorf("%s has no expectation", name)
			continue
		}
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		r := Read(toolOf(name), Screen{Lines: strings.Split(string(b), "\n"), CursorY: -1})
		composer := "-"
		if r.Composer != nil {
			composer = r.Composer.Text
		}
		if got := string(r.State) + "/" + string(r.Kind) + "/" + composer; got != want {
			t.Errorf("%s: got %q, want %q; %s", name, got, want, strconv.Quote(r.Detail))
		}
		if r.State == session.Waiting && (r.Dialog == nil || len(r.Dialog.Options) < 2) {
			t.Errorf("%s: no options: %+v", name, r.Dialog)
		}
	}
}
