package handshake

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"holdfast/internal/wire"
)

func request(body string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/connect/mini", strings.NewReader(body))
	for name, value := range map[string]string{
		"Upgrade": "websocket", "Connection": "Upgrade",
		"Sec-Websocket-Version": "13", "Sec-Websocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
	} {
		r.Header.Set(name, value)
	}
	return r
}

// What stands behind a handshake is the stream's first frame, so a body must
// never be taken for one.
func TestParseRefusesABody(t *testing.T) {
	if _, ref := Parse(request("")); ref != nil {
		t.Fatalf("without a body: %+v", ref)
	}
	chunked := request("hello")
	chunked.ContentLength, chunked.TransferEncoding = -1, []string{"chunked"}
	for name, r := range map[string]*http.Request{"of five bytes": request("hello"), "chunked": chunked} {
		_, ref := Parse(r)
		if ref == nil || ref.Status != http.StatusBadRequest || ref.Code != wire.RefusalSyntax {
			t.Errorf("a body %s: %+v", name, ref)
		}
	}
}
