// Package scriptedmodel is a model server on loopback for tests: enough of the
// Anthropic Messages interface and of the OpenAI Responses interface that the
// real Claude Code and the real Codex run whole turns without any network. It
// does what the prompt says.
//
// A prompt with "do:" is a script of steps joined by " then "; each answer of
// the model is one step, and after the last one it ends the turn:
//
//	say TEXT                 a plain answer; \n in it is a line break, as in all texts
//	bash COMMAND             a shell command
//	background COMMAND       a shell command that the turn does not wait for
//	write PATH TEXT          a new file
//	edit PATH OLD NEW        a change of a file
//	read PATH                a file
//	ask N                    N questions with choices; "ask multi" one that takes several
//	plan TEXT                a plan to approve: two answers, its file and the question
//	agent PROMPT             a sub-agent with that prompt
//	wait SECONDS STEP        STEP, after that time
//	twice STEP               the same call twice, both in one answer
//	fail STATUS              the HTTP status and the error that belongs to it
//
// Any other prompt gets a short plain answer. It never checks a key, and what a
// reader will get wrong: tools ask for titles and suggestions beside the turn;
// such requests bring no tools along and get a plain answer too.
package scriptedmodel

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// maxBody bounds a request: a long conversation with the tool's own prompts.
const maxBody = 64 << 20

// A step is one answer of the model.
type step struct {
	kind  string
	arg   string
	wait  time.Duration
	twice bool
}

// steps reads a prompt.
func steps(prompt string) []step {
	// The last one: tools join prompts that were not answered.
	from := strings.LastIndex(prompt, "do:")
	if from < 0 {
		return []step{{kind: "say", arg: "Hello, this is a scripted answer."}}
	}
	script := prompt[from+len("do:"):]
	var out []step
	for _, s := range strings.Split(script, " then ") {
		next := parse(strings.TrimSpace(s))
		if next.kind == "plan" {
			// The plan is a file, whose name the request tells.
			out = append(out, step{kind: "planfile", arg: next.arg})
		}
		out = append(out, next)
	}
	return out
}

func parse(s string) step {
	kind, arg, _ := strings.Cut(s, " ")
	arg = strings.TrimSpace(arg)
	if kind == "wait" {
		seconds, rest, _ := strings.Cut(arg, " ")
		n, err := strconv.ParseFloat(seconds, 64)
		if err != nil || n < 0 || n > 3600 {
			return step{kind: "say", arg: "That wait is not a number of seconds: " + seconds}
		}
		next := parse(strings.TrimSpace(rest))
		next.wait = time.Duration(n * float64(time.Second))
		return next
	}
	if kind == "twice" {
		next := parse(arg)
		next.twice = true
		return next
	}
	return step{kind: kind, arg: arg}
}

// times is how many calls or texts the answer has.
func (s step) times() int {
	if s.twice {
		return 2
	}
	return 1
}

// at is the step for a turn that has had n answers.
func at(prompt string, n int) step {
	all := steps(prompt)
	if n < len(all) {
		now := all[n]
		if now.kind == "say" {
			now.arg = strings.ReplaceAll(now.arg, `\n`, "\n")
		}
		return now
	}
	return step{kind: "say", arg: "That is done."}
}

// answersOf is how many answers of a script have had that many calls.
func answersOf(prompt string, calls int) (answers int) {
	for _, s := range steps(prompt) {
		if calls -= s.times(); calls < 0 {
			return answers
		}
		answers++
	}
	return answers + calls
}

// ids makes the names that both interfaces want to be unique.
var ids atomic.Int64

func next(prefix string) string { return fmt.Sprintf("%s%08d", prefix, ids.Add(1)) }

// Handler serves both interfaces.
func Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/messages/count_tokens", func(w http.ResponseWriter, r *http.Request) {
		writeJSON(w, http.StatusOK, map[string]int{"input_tokens": 10})
	})
	mux.HandleFunc("POST /v1/messages", messages)
	mux.HandleFunc("POST /v1/responses", responses)
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, r *http.Request) {
		writeJSON(w, http.StatusOK, map[string]any{"data": []any{}, "models": []any{}, "object": "list"})
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeJSON(w, http.StatusNotFound, map[string]any{"type": "error", "error": map[string]string{"type": "not_found_error", "message": "not served here"}})
	})
	return mux
}

func read(w http.ResponseWriter, r *http.Request, into any) bool {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err == nil {
		err = json.Unmarshal(body, into)
	}
	if err != nil {
		writeJSON(w, http.StatusBadRequest, map[string]any{"type": "error", "error": map[string]string{"type": "invalid_request_error", "message": err.Error()}})
		return false
	}
	return true
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

// A stream is an answer as server-sent events.
type stream struct {
	w http.ResponseWriter
	r *http.Request
}

func newStream(w http.ResponseWriter, r *http.Request) stream {
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	return stream{w, r}
}

func (s stream) send(event string, data any) {
	text, err := json.Marshal(data)
	if err != nil {
		panic(err)
	}
	fmt.Fprintf(s.w, "event: %s\ndata: %s\n\n", event, text)
	if f, ok := s.w.(http.Flusher); ok {
		f.Flush()
	}
}

// pause waits, unless the tool hangs up: then it says false.
func (s stream) pause(d time.Duration) bool {
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-s.r.Context().Done():
		return false
	}
}

// failure is what a status means on both interfaces.
func failure(arg string) (status int, kind, message string) {
	status, err := strconv.Atoi(strings.TrimSpace(arg))
	if err != nil || status < 400 || status > 599 {
		status = http.StatusInternalServerError
	}
	switch status {
	case 401:
		return status, "authentication_error", "invalid x-api-key"
	case 403:
		return status, "permission_error", "this key may not do that"
	case 429:
		return status, "rate_limit_error", "This request would exceed your account's rate limit."
	case 529:
		return status, "overloaded_error", "Overloaded"
	}
	return status, "api_error", "Internal server error"
}
