package tmux

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Place is where a pane is on its server.
type Place struct {
	Window, Session        string // @2, $1
	SessionName            string
	WindowName             string
	WindowIndex, PaneIndex int
	// Active says that this is the pane which a client of its session shows.
	Active bool
}

// Pane is one pane as its server lists it.
type Pane struct {
	ID string // %3
	Place
	Title      string
	PID        int    // of the process that the pane started
	TTY        string // /dev/pts/4
	Cols, Rows int
	CursorX    int
	CursorY    int
	Alternate  bool // the alternate screen is shown
	InMode     bool // copy mode or another mode of tmux eats keys
	Piped      bool // pipe-pane is on
	Bell       bool // the window's bell flag is set
	Dead       bool // the process ended and remain-on-exit keeps the pane
	// DeadStatus is its exit code, -1 when it is not known.
	DeadStatus int
	// Output is the time of the window's last output, to the second.
	Output  time.Time
	History int // lines of scrollback
	// Used is when a person last did something in the session, to the second.
	Used time.Time
}

// Client is one client of a server.
type Client struct {
	Session string
	PID     int
	// Watcher says that it is attached as Holdfast's own are: read-only,
	// ignoring its size, in control mode.
	Watcher bool
	// Activity is when a person last did something there, to the second.
	Activity time.Time
}

// Listing is what one look at a server found.
type Listing struct {
	Panes   []Pane
	Clients []Client

	server Info // PID and Started of the server that answered
}

// Looking counts the clients of each session that are not watchers.
func (l Listing) Looking() map[string]int {
	out := map[string]int{}
	for _, c := range l.Clients {
		if !c.Watcher {
			out[c.Session]++
		}
	}
	return out
}

// paneFormat lists a pane in one line. A window's and a session's name hold no
// tab, tmux writes it as an escape; the title is last because it may.
var paneFormat = strings.Join([]string{
	"#{pane_id}", "#{window_id}", "#{session_id}", "#{window_index}", "#{pane_index}",
	"#{window_active}#{pane_active}", "#{pane_pid}", "#{pane_tty}", "#{pane_width}", "#{pane_height}",
	"#{cursor_x}", "#{cursor_y}", "#{alternate_on}", "#{pane_in_mode}", "#{pane_pipe}", "#{window_bell_flag}",
	"#{pane_dead}", "#{pane_dead_status}", "#{pane_dead_signal}", "#{window_activity}", "#{history_size}", "#{session_activity}",
	"#{pid}", "#{start_time}", "#{session_name}", "#{window_name}", "#{pane_title}",
}, "\t")

const paneFields = 27

const clientFormat = "client\t#{session_id}\t#{client_pid}\t#{client_flags}\t#{client_activity}"

// listCommand is the one list that a look costs.
func listCommand() []string {
	return []string{"list-panes", "-a", "-F", paneFormat, ";", "list-clients", "-F", clientFormat}
}

var paneID = regexp.MustCompile(`^%[0-9]{1,10}$`)

// ValidPane says whether a text is a pane's id.
func ValidPane(id string) bool { return paneID.MatchString(id) }

// List looks at every pane and client of the server. A pane that several
// sessions share is listed once, under the one that most clients look at.
func (s *Server) List(ctx context.Context) (Listing, error) {
	out, err := s.command(ctx, listCommand()...)
	if err != nil {
		return Listing{}, fmt.Errorf("list the panes of tmux server %s: %w", s.socket, err)
	}
	l := parseListing(out)
	if err := s.same(l); err != nil {
		return Listing{}, fmt.Errorf("list the panes of tmux server %s: %w", s.socket, err)
	}
	return l, nil
}

// same tells a server from another that was started at its socket since: that one
// gives its panes the same ids.
func (s *Server) same(l Listing) error {
	if i := s.Info(); i.PID != 0 && l.server.PID != 0 && (i.PID != l.server.PID || i.Started != l.server.Started) {
		return ErrGone
	}
	return nil
}

// maxPanes bounds one server's panes; more are left out.
const maxPanes = 4096

func parseListing(out []byte) Listing {
	var l Listing
	at := map[string]int{}
	for line := range strings.SplitSeq(string(out), "\n") {
		if rest, ok := strings.CutPrefix(line, "client\t"); ok {
			if c, ok := parseClient(rest); ok && len(l.Clients) < maxPanes {
				l.Clients = append(l.Clients, c)
			}
		}
	}
	looking := l.Looking()
	for line := range strings.SplitSeq(string(out), "\n") {
		p, server, ok := parsePane(line)
		if !ok {
			continue
		}
		l.server = server
		if i, seen := at[p.ID]; seen {
			if looking[p.Session] > looking[l.Panes[i].Session] {
				l.Panes[i] = p
			}
			continue
		}
		if len(l.Panes) >= maxPanes {
			continue
		}
		at[p.ID] = len(l.Panes)
		l.Panes = append(l.Panes, p)
	}
	return l
}

func parseClient(line string) (Client, bool) {
	f := strings.Split(line, "\t")
	if len(f) != 4 {
		return Client{}, false
	}
	flags := strings.Split(f[2], ",")
	has := func(name string) bool { return slices.Contains(flags, name) }
	c := Client{Session: f[0], Watcher: has("control-mode") && has("ignore-size") && has("read-only")}
	c.PID, _ = strconv.Atoi(f[1])
	c.Activity = seconds(f[3])
	return c, true
}

func parsePane(line string) (Pane, Info, bool) {
	f := strings.SplitN(line, "\t", paneFields)
	if len(f) != paneFields || !ValidPane(f[0]) {
		return Pane{}, Info{}, false
	}
	number := func(i int) int { n, _ := strconv.Atoi(f[i]); return n }
	p := Pane{
		ID: f[0],
		Place: Place{
			Window: f[1], Session: f[2], SessionName: plain(f[24]), WindowName: plain(f[25]),
			WindowIndex: number(3), PaneIndex: number(4), Active: f[5] == "11",
		},
		PID: number(6), TTY: f[7], Cols: number(8), Rows: number(9),
		CursorX: number(10), CursorY: number(11), Alternate: f[12] == "1", InMode: number(13) > 0,
		Piped: f[14] == "1", Bell: f[15] == "1", Dead: f[16] == "1", DeadStatus: -1,
		Output: seconds(f[19]), History: number(20),
		Used: seconds(f[21]), Title: f[26],
	}
	if n, err := strconv.Atoi(f[17]); err == nil && p.Dead {
		p.DeadStatus = n
	}
	// A signal is told as shells tell it. Older servers leave both empty.
	if n, err := strconv.Atoi(f[18]); err == nil && p.Dead && n > 0 {
		p.DeadStatus = 128 + n
	}
	server := Info{PID: number(22)}
	server.Started, _ = strconv.ParseInt(f[23], 10, 64)
	return p, server, true
}

// plain undoes the escapes that tmux keeps in names.
func plain(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+1 < len(s) && strings.IndexByte(`\$"'#;{}~`, s[i+1]) >= 0 {
			i++
		}
		out.WriteByte(s[i])
	}
	return out.String()
}

func seconds(s string) time.Time {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n <= 0 {
		return time.Time{}
	}
	return time.Unix(n, 0)
}

// Screen is a pane's visible screen, or its scrollback too.
type Screen struct {
	Lines            []string
	CursorX, CursorY int
	Cols, Rows       int
	Alternate        bool
	InMode           bool
	History          int
}

// CaptureOptions say what of a pane to read. The zero value is the live visible
// screen as plain text.
type CaptureOptions struct {
	Styled bool // keep colours and attributes as escape sequences
	Joined bool // join lines that the terminal wrapped
	// Scrollback is how many lines of it come before the screen, at most 50,000.
	Scrollback int
}

const maxScrollback = 50_000

const screenFormat = "#{pane_width}\t#{pane_height}\t#{cursor_x}\t#{cursor_y}\t#{alternate_on}\t#{pane_in_mode}\t#{history_size}\t#{pid}"

// Capture reads the live screen of a pane, in copy mode too. Both questions go
// in one command, so the cursor belongs to the text. A pane with this id of
// another server, started at the socket since, is ErrNoPane.
func (s *Server) Capture(ctx context.Context, pane string, o CaptureOptions) (Screen, error) {
	if !ValidPane(pane) {
		return Screen{}, fmt.Errorf("read the screen of pane %q: %w", cut(pane, 40), ErrNoPane)
	}
	args := []string{"display-message", "-p", "-t", pane, screenFormat, ";", "capture-pane", "-p", "-t", pane}
	if o.Styled {
		args = append(args, "-e")
	}
	if o.Joined {
		args = append(args, "-J")
	}
	if n := min(max(o.Scrollback, 0), maxScrollback); n > 0 {
		args = append(args, "-S", strconv.Itoa(-n))
	}
	out, err := s.command(ctx, args...)
	if err != nil {
		return Screen{}, fmt.Errorf("read the screen of pane %s of tmux server %s: %w", pane, s.socket, err)
	}
	head, text, _ := strings.Cut(string(out), "\n")
	f := strings.Split(head, "\t")
	if pid := s.Info().PID; len(f) != 8 || f[0] == "" || pid != 0 && f[7] != strconv.Itoa(pid) {
		return Screen{}, fmt.Errorf("read the screen of pane %s of tmux server %s: %w", pane, s.socket, ErrNoPane)
	}
	number := func(i int) int { n, _ := strconv.Atoi(f[i]); return n }
	screen := Screen{
		Cols: number(0), Rows: number(1), CursorX: number(2), CursorY: number(3),
		Alternate: f[4] == "1", InMode: number(5) > 0, History: number(6),
	}
	if text = strings.TrimSuffix(text, "\n"); text != "" {
		screen.Lines = strings.Split(text, "\n")
	}
	return screen, nil
}

// InMode says whether copy mode or another mode of tmux eats the pane's keys.
func (s *Server) InMode(ctx context.Context, pane string) (bool, error) {
	f, err := s.ask(ctx, pane, "#{pane_in_mode}")
	return err == nil && f != "0" && f != "", err
}

// Size is the pane's size in cells.
func (s *Server) Size(ctx context.Context, pane string) (cols, rows int, err error) {
	f, err := s.ask(ctx, pane, "#{pane_width} #{pane_height}")
	if err != nil {
		return 0, 0, err
	}
	if _, err := fmt.Sscan(f, &cols, &rows); err != nil {
		return 0, 0, fmt.Errorf("ask pane %s for its size: answer %q is not understood", pane, cut(f, 40))
	}
	return cols, rows, nil
}

// ask expands a format for one pane. tmux answers with nothing, not with an
// error, where the pane is gone, so the id is asked for along with it.
func (s *Server) ask(ctx context.Context, pane, format string) (string, error) {
	if !ValidPane(pane) {
		return "", fmt.Errorf("ask pane %q: %w", cut(pane, 40), ErrNoPane)
	}
	out, err := s.command(ctx, "display-message", "-p", "-t", pane, "#{pane_id} "+format)
	if err != nil {
		return "", fmt.Errorf("ask pane %s of tmux server %s: %w", pane, s.socket, err)
	}
	id, answer, _ := strings.Cut(strings.TrimSuffix(string(out), "\n"), " ")
	if id != pane {
		return "", fmt.Errorf("ask pane %s of tmux server %s: %w", pane, s.socket, ErrNoPane)
	}
	return answer, nil
}

// Dir is the working directory of what runs in the pane, as the server finds it.
func (s *Server) Dir(ctx context.Context, pane string) (string, error) {
	return s.ask(ctx, pane, "#{pane_current_path}")
}
