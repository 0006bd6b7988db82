// Package conversation reads what was said in a session from the transcript
// that the tool itself keeps: Claude Code, Codex, Gemini CLI, opencode and
// aider. It finds the transcript of a pane (Locate), pages it backwards from its
// end in bounded memory whatever its size (Log.Page), follows it (Log.Tail),
// searches it, fetches what was cut, and says what its end shows (TailState).
// The model is that of package item, documented in docs/conversation.md.
//
// It never writes to a transcript, never locks one, and never guesses: where two
// transcripts fit a pane equally well, Locate says so. What a caller will get
// wrong: the files belong to other programs, so a Log can end (ErrCursor, Gone)
// at any time, and one Log serves one reader at a time.
package conversation

import (
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"holdfast/internal/session/conversation/item"
)

// The model, under the names that callers use.
type (
	Item      = item.Item
	Kind      = item.Kind
	Cursor    = item.Cursor
	Page      = item.Page
	Change    = item.Change
	TailInfo  = item.Tail
	Turning   = item.Turning
	Turn      = item.Turn
	Tool      = item.Tool
	Image     = item.Image
	Question  = item.Question
	Diff      = item.Diff
	BodyText  = item.Body
	ToolState = item.Status
)

// What the end of a transcript shows, and the errors of cursors and blobs.
const (
	TurnWorking     = item.TurnWorking
	TurnDone        = item.TurnDone
	TurnInterrupted = item.TurnInterrupted
	TurnLimit       = item.TurnLimit
	TurnNone        = item.TurnNone
)

// Sentinels; see also item.ErrCursor and item.ErrBlob.
var (
	ErrCursor = item.ErrCursor
	ErrBlob   = item.ErrBlob
	// ErrNone says that no transcript was found: the tool keeps none, or has not
	// written it yet.
	ErrNone = errors.New("no transcript found")
	// ErrAmbiguous says that several transcripts fit; see AmbiguousError.
	ErrAmbiguous = errors.New("several transcripts fit and nothing tells them apart")
	// ErrTool says that a tool's transcripts are not known.
	ErrTool = errors.New("transcripts of this tool are not known")
)

// An AmbiguousError lists the transcripts that fit equally well. It is an
// ErrAmbiguous.
type AmbiguousError struct {
	Tool       string
	Candidates []Ref
}

func (e *AmbiguousError) Error() string {
	paths := make([]string, 0, 3)
	for i, c := range e.Candidates {
		if i == cap(paths) {
			paths = append(paths, fmt.Sprintf("%d more", len(e.Candidates)-i))
			break
		}
		paths = append(paths, c.Path)
	}
	return fmt.Sprintf("find the transcript of %s: %v: %s", e.Tool, ErrAmbiguous, strings.Join(paths, ", "))
}

func (e *AmbiguousError) Unwrap() error { return ErrAmbiguous }

// Tools lists the names of tools whose transcripts are known, as in
// session.Session.
func Tools() []string { return []string{"claude", "codex", "gemini", "opencode", "aider"} }

// A Ref names a transcript on this machine. The zero Ref names none.
type Ref struct {
	Tool      string `json:"tool"`
	Path      string `json:"path"`                // the file, or opencode's database or storage directory
	SessionID string `json:"sessionId,omitempty"` // needed for opencode, otherwise what is known
	// Agent selects a sub-agent's conversation within the transcript.
	Agent string `json:"agent,omitempty"`
	// How says what linked the pane to it: "id", "open file", "directory".
	How string `json:"how,omitempty"`
}

// IsZero says whether r names nothing.
func (r Ref) IsZero() bool { return r == Ref{} }

// A Query is what is known about a pane.
type Query struct {
	Tool string // required
	// SessionID is what the tool's registry or a hook told, and beats all else.
	SessionID string
	// Transcript is the path that a hook told. It must be of a file of the tool.
	Transcript string
	// PID is the process of the tool; its open files are looked at.
	PID int
	// Dir is the working directory of that process.
	Dir string
	// StartedAt is when the process started; zero means not known.
	StartedAt time.Time
	// Home is the user's home directory; required unless Env names the tool's own.
	Home string
	// Env looks up the environment of the tool's process: CLAUDE_CONFIG_DIR,
	// CODEX_HOME, GEMINI_CLI_HOME, XDG_DATA_HOME. nil means that all are unset.
	Env func(name string) string
	// OpenFiles lists the paths that the process holds open. nil reads
	// /proc/PID/fd where there is one.
	OpenFiles func(pid int) []string
}

// A Log is an open transcript. Its methods may be called from several
// goroutines; they take turns.
type Log struct {
	ref Ref

	mu  sync.Mutex // guards src, which serves one call at a time
	src item.Source
}

// Ref is what the log was opened with.
func (l *Log) Ref() Ref { return l.ref }

// Close releases the transcript. It does not stop a Tail; its context does.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.src.Close()
}

// Page returns at most limit items above a cursor, the newest ones for an empty
// cursor; limit 0 means 50. A page may hold fewer items than asked, even none;
// only an empty Before says that the beginning was reached.
func (l *Log) Page(before Cursor, limit int) (Page, error) {
	if !before.Valid() {
		return Page{}, ErrCursor
	}
	if limit <= 0 {
		limit = defaultPage
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	p, err := l.src.Page(before, min(limit, item.MaxItems))
	if err != nil {
		return Page{}, fmt.Errorf("read the conversation of %s: %w", l.ref.Tool, err)
	}
	if p.Items == nil {
		p.Items = []Item{}
	}
	return p, nil
}

// defaultPage is what a page holds when nothing is asked: a few screens of a
// phone.
const defaultPage = 50

// Blob returns up to n bytes (at most item.MaxPiece) of a text or picture that
// was cut, from an offset in it, and whether it ends there.
func (l *Log) Blob(id string, offset int64, n int) (piece []byte, end bool, err error) {
	if len(id) > maxBlobID || offset < 0 || n < 0 {
		return nil, false, ErrBlob
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	piece, end, err = l.src.Blob(id, offset, min(n, item.MaxPiece))
	if err != nil {
		return nil, false, fmt.Errorf("read a piece of the conversation of %s: %w", l.ref.Tool, err)
	}
	return piece, end, nil
}

// maxBlobID bounds the name of a blob that comes from a peer, in bytes.
const maxBlobID = 256

// Plain makes a text of a conversation safe to print on a terminal.
func Plain(s string) string { return item.Plain(s) }

// Turns groups items into turns.
func Turns(items []Item) []Turn { return item.Turns(items) }

// TailState reads the end of a transcript. It is cheap enough to be called
// whenever the file changed. A transcript that is not there yields TurnNone and
// an error that is fs.ErrNotExist.
func TailState(ref Ref) (TailInfo, error) {
	l, err := Open(ref)
	if err != nil {
		return TailInfo{State: TurnNone}, err
	}
	defer l.Close()
	t, err := l.src.Tail()
	if err != nil {
		return TailInfo{State: TurnNone}, fmt.Errorf("read the end of the conversation of %s: %w", ref.Tool, err)
	}
	if t.State == "" {
		t.State = TurnNone
	}
	return t, nil
}

// finishedCalls is how many finished calls Finished tells apart: more at once than
// a model asks for.
const finishedCalls = 16

// Finished says which calls and interruptions are the last that a transcript holds
// as over: it is another text after each, and the same while one is waited for.
// It is empty when none is. Two processes that read the same find the same.
func Finished(ref Ref) (string, error) {
	l, err := Open(ref)
	if err != nil {
		return "", err
	}
	defer l.Close()
	p, err := l.Page("", defaultPage)
	if err != nil {
		return "", err
	}
	h, n := fnv.New64a(), 0
	for _, it := range slices.Backward(p.Items) {
		over := it.Kind == item.Interrupted || it.Tool != nil && it.Tool.Status != item.Running
		if over && n < finishedCalls {
			n++
			fmt.Fprintf(h, "%s %s\n", it.ID, it.Kind)
		}
	}
	if n == 0 {
		return "", nil
	}
	return strconv.FormatUint(h.Sum64(), 36), nil
}
