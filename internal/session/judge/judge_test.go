package judge

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"holdfast/internal/session"
)

var t0 = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

// at is a time of a test, in milliseconds after its beginning.
func at(ms int) time.Time { return t0.Add(time.Duration(ms) * time.Millisecond) }

func sig(state session.State, ms int) *Signal { return &Signal{State: state, At: at(ms)} }

func ask(kind session.Kind, ms, checked int, digest string) *Signal {
	return &Signal{State: session.Waiting, Kind: kind, At: at(ms), Checked: at(checked), Dialog: &session.Dialog{Digest: digest}}
}

func before(state session.State, ms int) session.Status {
	return session.Status{State: state, Since: at(ms), Confirmed: at(ms)}
}

func TestRules(t *testing.T) {
	code := 3
	for _, c := range []struct {
		name   string
		f      Facts
		state  session.State
		kind   session.Kind
		source session.Source
		dialog string
	}{
		{"nothing is unknown, not idle", Facts{}, session.Unknown, "", "", ""},
		{"nothing after working is unknown", Facts{Before: before(session.Working, 0)}, session.Unknown, "", "", ""},

		{"rule 1: an end beats everything", Facts{Ended: &Signal{State: session.Exited, At: at(1), Code: &code}, Registry: sig(session.Working, 5000),
			Silent: at(0)}, session.Exited, "", session.FromProcess, ""},
		{"rule 2: a silent server is unknown", Facts{Silent: at(1), Registry: sig(session.Working, 5000)}, session.Unknown, "", session.FromProcess, ""},

		{"rule 3: registry before hook", Facts{Registry: sig(session.Working, 1000), Hook: sig(session.Done, 2000)}, session.Working, "", session.FromRegistry, ""},
		{"rule 3: hook before OSC", Facts{Hook: sig(session.Working, 1000), OSC: sig(session.Idle, 2000)}, session.Working, "", session.FromHook, ""},
		{"rule 3: OSC before transcript", Facts{OSC: sig(session.Working, 1000), Transcript: sig(session.Idle, 2000)}, session.Working, "", session.FromOSC, ""},
		{"rule 3: transcript before screen", Facts{Transcript: sig(session.Working, 1000), Screen: sig(session.Idle, 1100), Settled: true},
			session.Working, "", session.FromTranscript, ""},
		{"rule 3: screen before what runs", Facts{Screen: sig(session.Working, 1000), Running: sig(session.Idle, 2000)}, session.Working, "", session.FromScreen, ""},

		{"rule 4: a secret is asked for", Facts{Terminal: &Signal{State: session.Waiting, Kind: session.Password, At: at(5)},
			OSC: sig(session.Working, 9), Running: sig(session.Working, 0)}, session.Waiting, session.Password, session.FromTerminal, ""},
		{"rule 4: with its prompt", Facts{Terminal: &Signal{State: session.Waiting, Kind: session.Password, At: at(5)},
			Screen: ask(session.Password, 6, 6, "pw"), Settled: true}, session.Waiting, session.Password, session.FromScreen, "pw"},
		{"rule 4: not in a tool", Facts{Known: true, Terminal: &Signal{State: session.Waiting, Kind: session.Password, At: at(5)},
			Screen: sig(session.Working, 0)}, session.Working, "", session.FromScreen, ""},

		{"rule 5: a dialog on the screen beats an older busy", Facts{Registry: sig(session.Working, 1000), Screen: ask(session.Permission, 1200, 2000, "d"), Settled: true},
			session.Waiting, session.Permission, session.FromScreen, "d"},
		{"rule 5: not a newer busy", Facts{Registry: sig(session.Working, 1900), Screen: ask(session.Permission, 1200, 2000, "d"), Settled: true},
			session.Working, "", session.FromRegistry, ""},
		{"rule 5: not when the screen moved on", Facts{Registry: sig(session.Working, 1000), Screen: ask(session.Permission, 1200, 2000, "d")},
			session.Working, "", session.FromRegistry, ""},
		{"rule 5: an approval that Codex asks for", Facts{Transcript: sig(session.Working, 1000), Screen: ask(session.Permission, 1600, 1600, "d"), Settled: true},
			session.Waiting, session.Permission, session.FromScreen, "d"},

		{"rule 6: a hook's question that the screen no longer shows", Facts{Hook: &Signal{State: session.Waiting, Kind: session.Permission, At: at(1000)},
			Screen: &Signal{State: session.Working, At: at(1600), Checked: at(1600)}, Settled: true}, session.Working, "", session.FromScreen, ""},
		{"rule 6: a hook's question before the screen was read", Facts{Hook: &Signal{State: session.Waiting, Kind: session.Permission, At: at(1000)},
			Screen: &Signal{State: session.Working, At: at(900), Checked: at(900)}, Settled: true}, session.Waiting, session.Permission, session.FromHook, ""},
		{"rule 6: a hook's question with its dialog", Facts{Hook: &Signal{State: session.Waiting, Kind: session.Permission, At: at(1000)},
			Screen: ask(session.Question, 1100, 1700, "d"), Settled: true}, session.Waiting, session.Question, session.FromHook, "d"},

		{"rule 7: Esc, told by the transcript", Facts{Hook: sig(session.Working, 1000), Transcript: &Signal{State: session.Idle, Plain: true, At: at(1500)},
			Before: before(session.Working, 1000)}, session.Idle, "", session.FromTranscript, ""},
		{"rule 7: Esc, and a registry that missed it", Facts{Registry: sig(session.Working, 1000), Transcript: &Signal{State: session.Idle, Plain: true, At: at(1500)},
			Before: before(session.Working, 1000)}, session.Idle, "", session.FromTranscript, ""},
		{"rule 7: a registry that began anew after it", Facts{Registry: sig(session.Working, 1600), Transcript: &Signal{State: session.Idle, Plain: true, At: at(1500)}},
			session.Working, "", session.FromRegistry, ""},

		{"rule 8: Esc, told by nobody", Facts{Transcript: sig(session.Working, 1000), Screen: &Signal{State: session.Idle, At: at(1500), Checked: at(2600)}, Settled: true},
			session.Idle, "", session.FromScreen, ""},
		{"rule 8: not at once", Facts{Transcript: sig(session.Working, 1000), Screen: &Signal{State: session.Idle, At: at(1500), Checked: at(1500)}, Settled: true},
			session.Working, "", session.FromTranscript, ""},

		{"rule 9: a turn that the transcript does not have yet", Facts{Transcript: sig(session.Done, 1000), Screen: &Signal{State: session.Working, At: at(3000), Checked: at(3000)},
			Before: before(session.Idle, 2000)}, session.Working, "", session.FromScreen, ""},
		{"rule 9: the last of the turn's own redraws", Facts{Transcript: sig(session.Done, 3000), Screen: &Signal{State: session.Working, At: at(1000), Checked: at(3100)},
			Before: before(session.Working, 1000)}, session.Done, "", session.FromTranscript, ""},

		{"rule 10: a command after a finish", Facts{OSC: sig(session.Done, 1000), Running: sig(session.Working, 2000)}, session.Working, "", session.FromProcess, ""},
		{"rule 10: not what finished by itself and stays", Facts{OSC: sig(session.Done, 3000), Running: sig(session.Working, 2000), Watched: at(0)},
			session.Done, "", session.FromOSC, ""},
		{"rule 10: a shell that was seen at its prompt after the mark of a command", Facts{OSC: sig(session.Working, 1000),
			Running: &Signal{State: session.Idle, At: at(500), Checked: at(1100), Plain: true}}, session.Idle, "", session.FromProcess, ""},
		{"rule 10: not before the mark", Facts{OSC: sig(session.Working, 1000), Running: &Signal{State: session.Idle, At: at(500), Checked: at(900)}},
			session.Working, "", session.FromOSC, ""},
		{"rule 10: a command that the shell's marks do not tell", Facts{OSC: sig(session.Idle, 1000), Running: sig(session.Working, 2000)}, session.Working, "", session.FromProcess, ""},

		{"rule 11: work beside the turn", Facts{Registry: sig(session.Idle, 1000), Screen: &Signal{State: session.Idle, At: at(1100), Tasks: true},
			Before: before(session.Working, 0)}, session.Background, "", session.FromRegistry, ""},
		{"rule 11: told by a hook", Facts{Hook: &Signal{State: session.Done, At: at(1000), Tasks: true}, Before: before(session.Working, 0)}, session.Background, "", session.FromHook, ""},
		{"rule 11: which a later idle ends", Facts{Registry: sig(session.Idle, 4000), Hook: &Signal{State: session.Background, At: at(1000), Tasks: true},
			Before: before(session.Background, 1000)}, session.Done, "", session.FromRegistry, ""},

		{"rule 12: finished", Facts{Registry: sig(session.Idle, 1000), Before: before(session.Working, 0)}, session.Done, "", session.FromRegistry, ""},
		{"rule 12: finished under the person's eyes", Facts{Registry: sig(session.Idle, 1000), Before: before(session.Working, 0), Seen: at(1000)}, session.Idle, "", session.FromRegistry, ""},
		{"rule 12: stays done until seen", Facts{Registry: sig(session.Idle, 1000), Before: before(session.Done, 1000), Seen: at(500)}, session.Done, "", session.FromRegistry, ""},
		{"rule 12: seen", Facts{Registry: sig(session.Idle, 1000), Before: before(session.Done, 1000), Seen: at(1001)}, session.Idle, "", session.FromRegistry, ""},
		{"rule 12: a turn that was too short to be seen", Facts{Transcript: sig(session.Done, 1000), Before: before(session.Idle, 0), Watched: at(-100)}, session.Done, "", session.FromTranscript, ""},
		{"rule 12: what ended before anybody watched", Facts{Transcript: sig(session.Done, 1000), Before: session.Status{State: session.Unknown}, Watched: at(2000)}, session.Idle, "", session.FromTranscript, ""},
		{"rule 12: a question that was dismissed is no finish", Facts{Registry: sig(session.Idle, 1000), Before: before(session.Waiting, 0)}, session.Idle, "", session.FromRegistry, ""},
		{"rule 12: Esc before the model said a word", Facts{Registry: sig(session.Idle, 1500), Transcript: sig(session.Working, 1000), Before: before(session.Working, 1000)},
			session.Idle, "", session.FromRegistry, ""},
		{"rule 12: finished, and written down a moment later", Facts{Registry: sig(session.Idle, 1500), Transcript: sig(session.Done, 1490), Before: before(session.Idle, 1500)},
			session.Done, "", session.FromRegistry, ""},
		{"rule 12: a short command", Facts{Running: &Signal{State: session.Idle, At: at(1000), Plain: true}, Before: before(session.Working, 0)}, session.Idle, "", session.FromProcess, ""},

		{"rule 13: background work ended a moment ago", Facts{Registry: sig(session.Idle, 5500), Transcript: sig(session.Done, 1000), Before: before(session.Background, 1000)},
			session.Background, "", session.FromRegistry, ""},
		{"sub-agents do not wait for the person", Facts{Registry: sig(session.Working, 1000), Screen: &Signal{State: session.Working, At: at(0), Checked: at(2000), Tasks: true}, Settled: true},
			session.Working, "", session.FromRegistry, ""},
		{"a limit is a kind of its own", Facts{Transcript: &Signal{State: session.Waiting, Kind: session.Limit, At: at(1000)}, Screen: sig(session.Idle, 1200), Settled: true},
			session.Waiting, session.Limit, session.FromTranscript, ""},
		{"waiting for what nobody says is a question", Facts{Registry: sig(session.Waiting, 1000)}, session.Waiting, session.Question, session.FromRegistry, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.f.Now = at(6000)
			st := Judge(c.f)
			source, dialog := session.Source(""), digest(st)
			if len(st.Evidence) > 0 {
				source = st.Evidence[0].Source
			}
			if st.State != c.state || st.Kind != c.kind || source != c.source || dialog != c.dialog {
				t.Errorf("%s %s from %q with dialog %q, want %s %s from %q with %q", st.State, st.Kind, source, dialog, c.state, c.kind, c.source, c.dialog)
			}
			if (st.ExitCode != nil) != (c.f.Ended != nil && c.f.Ended.Code != nil) {
				t.Errorf("exit code %v", st.ExitCode)
			}
		})
	}
}

func TestSinceIsTheBeginning(t *testing.T) {
	f := Facts{Now: at(5000), Registry: &Signal{State: session.Working, At: at(1000), Checked: at(4900)}}
	st := Judge(f)
	if !st.Since.Equal(at(1000)) || !st.Confirmed.Equal(at(4900)) {
		t.Errorf("first: since %v, confirmed %v", st.Since, st.Confirmed)
	}
	f.Before, f.Now = st, at(9000)
	f.Registry = &Signal{State: session.Working, At: at(8000), Checked: at(8900)}
	if st = Judge(f); !st.Since.Equal(at(1000)) || !st.Confirmed.Equal(at(8900)) {
		t.Errorf("still working: since %v, confirmed %v", st.Since, st.Confirmed)
	}
	// Told of by the registry first, read from the screen a moment later.
	early := Facts{Now: at(10500), Registry: &Signal{State: session.Waiting, Kind: session.Permission, At: at(10000)}, Before: st}
	waits := Judge(early)
	early.Before, early.Now, early.Settled, early.Screen = waits, at(11000), true, ask(session.Permission, 10900, 10900, "one")
	if read := Judge(early); !read.Since.Equal(at(10000)) || read.Dialog == nil {
		t.Errorf("a dialog that was read later: %+v after %+v", read, waits)
	}
	f.Before, f.Now, f.Settled = st, at(12000), true
	f.Screen = ask(session.Permission, 10000, 11000, "one")
	if st = Judge(f); st.State != session.Waiting || !st.Since.Equal(at(10000)) {
		t.Errorf("a dialog: %+v", st)
	}
	// Another dialog with no gap between is another waiting.
	f.Before, f.Now, f.Screen = st, at(14000), ask(session.Permission, 13000, 13000, "two")
	if st = Judge(f); !st.Since.Equal(at(13000)) {
		t.Errorf("a second dialog: since %v", st.Since)
	}
}

func TestASecondFinishIsNews(t *testing.T) {
	f := Facts{Now: at(2000), Transcript: sig(session.Done, 1000), Before: before(session.Working, 0)}
	first := Judge(f)
	f = Facts{Now: at(9000), Transcript: sig(session.Done, 8000), Before: first, Seen: at(500)}
	if st := Judge(f); st.State != session.Done || !st.Since.Equal(at(8000)) {
		t.Errorf("%+v", st)
	}
}

// What the judge says is well formed whatever it is told.
func TestAnyFacts(t *testing.T) {
	states := []session.State{session.Waiting, session.Working, session.Background, session.Done, session.Idle, session.Exited, session.Unknown, ""}
	kinds := []session.Kind{"", session.Permission, session.Question, session.Reply, session.Password, session.Limit}
	rapid.Check(t, func(t *rapid.T) {
		signal := func(name string) *Signal {
			if !rapid.Bool().Draw(t, name) {
				return nil
			}
			s := &Signal{
				State: rapid.SampledFrom(states).Draw(t, "state"), Kind: rapid.SampledFrom(kinds).Draw(t, "kind"),
				Detail: rapid.String().Draw(t, "detail"), At: at(rapid.IntRange(0, 5000).Draw(t, "at")),
				Plain: rapid.Bool().Draw(t, "plain"), Tasks: rapid.Bool().Draw(t, "tasks"),
			}
			if rapid.Bool().Draw(t, "dialog") {
				s.Dialog = &session.Dialog{Digest: "d"}
			}
			return s
		}
		f := Facts{
			Now: at(5000), Registry: signal("registry"), Hook: signal("hook"), OSC: signal("osc"), Transcript: signal("transcript"),
			Screen: signal("screen"), Terminal: signal("terminal"), Running: signal("running"), Settled: rapid.Bool().Draw(t, "settled"),
			Known:  rapid.Bool().Draw(t, "known"),
			Before: session.Status{State: rapid.SampledFrom(states).Draw(t, "before"), Since: at(rapid.IntRange(0, 5000).Draw(t, "since"))},
			Seen:   at(rapid.IntRange(0, 5000).Draw(t, "seen")), Watched: at(rapid.IntRange(0, 5000).Draw(t, "watched")),
		}
		st := Judge(f)
		switch {
		case st.State == "":
			t.Fatal("no state")
		case (st.State == session.Waiting) != (st.Kind != ""):
			t.Fatalf("%s of kind %q", st.State, st.Kind)
		case st.State != session.Waiting && st.Dialog != nil:
			t.Fatalf("%s with a dialog", st.State)
		case st.State != session.Unknown && len(st.Evidence) == 0:
			t.Fatalf("%s without evidence", st.State)
		case st.Since.IsZero() || st.Since.After(f.Now):
			t.Fatalf("since %v", st.Since)
		}
		// Judged again with nothing new, it says the same.
		f.Before = st
		if again := Judge(f); again.State != st.State || again.Kind != st.Kind || !again.Since.Equal(st.Since) {
			t.Fatalf("first %+v, then %+v", st, again)
		}
		for _, e := range st.Evidence {
			if len(e.Detail) > maxDetail {
				t.Fatalf("%d bytes of detail", len(e.Detail))
			}
		}
	})
}
