package relay

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"time"

	"holdfast/internal/engine"
	"holdfast/internal/pairing"
	"holdfast/internal/wire"
)

// deviceKey is a well-formed ed25519 key.
var deviceKey = func() string {
	blob := append([]byte{0, 0, 0, 11}, "ssh-ed25519"...)
	blob = append(blob, 0, 0, 0, 32)
	sum := sha256.Sum256([]byte("a device"))
	return "ssh-ed25519 " + base64.StdEncoding.EncodeToString(append(blob, sum[:]...))
}()

// call makes a /v1 request.
func (g *rig) call(method, path, token, body string, more ...string) (*http.Response, []byte) {
	g.t.Helper()
	req, err := http.NewRequestWithContext(g.ctx(), method, "http://"+g.addr+path, strings.NewReader(body))
	if err != nil {
		g.t.Fatal(err)
	}
	req.Header = header(token, more...)
	resp, err := g.client.Do(req)
	if err != nil {
		g.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		g.t.Fatal(err)
	}
	return resp, b
}

// decode wants a status and gives the body.
func decode[T any](g *rig, resp *http.Response, body []byte, status int) T {
	g.t.Helper()
	var v T
	if resp.StatusCode != status {
		g.t.Fatalf("%s: got %s %s", resp.Request.URL.Path, resp.Status, body)
	}
	if err := json.Unmarshal(body, &v); err != nil {
		g.t.Fatalf("%s: %v in %s", resp.Request.URL.Path, err, body)
	}
	return v
}

// redeem pairs a device with machine, past the API.
func (g *rig) redeem(machine wire.MachineID) wire.PairingRedeemed {
	g.t.Helper()
	s := pairing.NewSecret().RelaySecret()
	if _, err := g.accounts.OpenPairing(g.ctx(), engine.Key{Account: "ann", Machine: machine}, s.Hash(), time.Minute); err != nil {
		g.t.Fatal(err)
	}
	r, err := g.accounts.Redeem(g.ctx(), s, deviceKey, "laptop")
	if err != nil {
		g.t.Fatal(err)
	}
	return wire.PairingRedeemed{Token: r.Text.Secret(), Device: r.Device.ID, Account: string(r.Device.Account), Machine: r.Machine}
}
