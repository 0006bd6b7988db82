package channels_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"holdfast/live"
	"holdfast/live/channels"
)

// page connects to a site with one channel and does what a page would: it sends
// some messages and prints what comes, until the connection ends or enough came.
func page(channel live.Handler, expect int, messages ...string) {
	server, err := live.New(live.Options{})
	if err != nil {
		log.Fatal(err)
	}
	site := httptest.NewServer(server.Handler(func(*http.Request) (live.Handler, error) { return channel, nil }))
	defer site.Close()
	ctx := context.Background()
	c, _, err := websocket.Dial(ctx, site.URL, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.CloseNow()
	for _, m := range messages {
		if err := c.Write(ctx, websocket.MessageText, []byte(m)); err != nil {
			log.Fatal(err)
		}
	}
	for expect > 0 {
		_, m, err := c.Read(ctx)
		if err != nil {
			fmt.Println("closed with", int(websocket.CloseStatus(err)))
			return
		}
		// A channel that says nothing is opened by a question; clients answer it.
		if string(m) != `{"op":"ping"}` {
			fmt.Println(string(m))
			expect--
		}
	}
}

func ExampleInbox() {
	inbox, err := channels.NewInbox(channels.InboxOptions{
		Storage: channels.NewMemory(), // package livesql keeps it in a database
		Encode: func(unread []channels.Notice) any {
			texts := map[string]json.RawMessage{}
			for _, n := range unread {
				texts[n.ID] = n.Data
			}
			return map[string]any{"inbox": texts}
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	for id, text := range map[string]string{"0001": `"the contest has begun"`, "0002": `"problem B: n is at most 10"`} {
		if err := inbox.Post(ctx, channels.Notice{ID: id, At: time.Now(), Data: json.RawMessage(text)}); err != nil {
			log.Fatal(err)
		}
	}
	page(inbox.Channel("alice"), 2, `{"op":"acknowledge","id":"0001"}`)
	// Output:
	// {"inbox":{"0001":"the contest has begun","0002":"problem B: n is at most 10"}}
	// {"inbox":{"0002":"problem B: n is at most 10"}}
}

func ExampleWatch() {
	verdicts := map[string]string{"r1": "accepted", "r2": "judging"}
	watch, err := channels.NewWatch(channels.WatchOptions{
		Load: func(_ context.Context, _ *live.Conn, id string) (any, error) {
			verdict, ok := verdicts[id]
			if !ok {
				return nil, channels.ErrNoItem
			}
			return map[string]string{"id": id, "verdict": verdict}, nil
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	// After a verdict has changed: watch.Changed("r2").
	page(watch.Channel(), 3, `{"op":"watch","ids":["r1","r2","r9"]}`)
	// Output:
	// {"id":"r1","verdict":"accepted"}
	// {"id":"r2","verdict":"judging"}
	// {"error":{"name":"NotFound","params":["r9"]}}
}

func ExampleDetail() {
	var judged atomic.Bool
	detail, err := channels.NewDetail(channels.DetailOptions{
		Load: func(_ context.Context, id string) (state any, terminal bool, err error) {
			if judged.Load() {
				return map[string]string{"id": id, "status": "accepted"}, true, nil
			}
			return map[string]string{"id": id, "status": "judging"}, false, nil
		},
		Linger:   10 * time.Millisecond, // 30 s in real life
		Throttle: time.Millisecond,
	})
	if err != nil {
		log.Fatal(err)
	}
	page(detail.Channel("r1"), 1)
	judged.Store(true)
	detail.Changed("r1") // tells those who look at it now
	page(detail.Channel("r1"), 2)
	// Output:
	// {"id":"r1","status":"judging"}
	// {"id":"r1","status":"accepted"}
	// closed with 4001
}

func ExampleRun() {
	run, err := channels.NewRun(0)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Fprintln(run, "compiling") // a Run is an io.Writer: exec.Cmd.Stdout, say
	fmt.Fprintln(run, "running")
	run.Finish(map[string]int{"exit": 0})
	// This page has the first ten bytes already.
	page(run.Channel(), 3, `{"op":"run","from":10}`)
	// Output:
	// {"at":10,"data":"cnVubmluZwo="}
	// {"end":18,"result":{"exit":0}}
	// closed with 4001
}

func ExampleLease() {
	lease, err := channels.NewLease(channels.LeaseOptions{Storage: channels.NewMemory()})
	if err != nil {
		log.Fatal(err)
	}
	begin := time.Date(2026, 3, 1, 9, 0, 0, 0, time.UTC)
	for _, at := range []int{0, 10, 20, 75, 85} { // the link was dead for almost a minute
		credit, err := lease.Report(context.Background(), "alice", "problem A", "this connection", true, begin.Add(time.Duration(at)*time.Second))
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(at, credit.Elapsed)
	}
	// Output:
	// 0 0s
	// 10 10s
	// 20 20s
	// 75 20s
	// 85 30s
}
