package jsonapi

import (
	"errors"
	"net/http"
	"strconv"

	"holdfast/internal/engine"
	"holdfast/internal/relay/gate"
	"holdfast/internal/wire"
)

// noticesPage is how many notices one answer holds: with the longest texts and
// every byte escaped 1.2 MB, which is the most that a client of ours reads twice
// over.
const noticesPage = 50

// notices lists the account's, page by page.
func (a *API) notices(w http.ResponseWriter, c call) *gate.Refusal {
	if c.token.Kind != engine.KindDevice {
		return gate.NotAllowed()
	}
	query := c.URL.Query()
	unread := false
	if words, asked := query["unread"]; asked {
		var err error
		if unread, err = strconv.ParseBool(words[0]); err != nil || len(words) != 1 {
			return gate.Refuse(http.StatusBadRequest, wire.RefusalSyntax, "unread is true or false")
		}
	}
	list, err := a.Store.Notices(c.Context(), c.token.Account, engine.NoticeQuery{
		Unread: unread, After: query.Get("after"), Limit: noticesPage + 1,
	})
	if err != nil {
		return a.Gate.Unavailable("list notices", err)
	}
	out := wire.Notices{Notices: []wire.NoticeInfo{}, More: len(list) > noticesPage}
	for _, n := range list[:min(len(list), noticesPage)] {
		info := wire.NoticeInfo{ID: n.ID, At: n.Posted.UTC(), Text: n.Text}
		if !n.Read.IsZero() {
			info.Read = new(n.Read.UTC())
		}
		out.Notices = append(out.Notices, info)
	}
	return a.answer(w, http.StatusOK, out)
}

// readNotice marks one read, for every device of the account.
func (a *API) readNotice(w http.ResponseWriter, c call) *gate.Refusal {
	if c.token.Kind != engine.KindDevice {
		return gate.NotAllowed()
	}
	switch err := a.Store.AckNotice(c.Context(), c.token.Account, c.rest); {
	case errors.Is(err, engine.ErrNotFound):
		return gate.Refuse(http.StatusNotFound, wire.RefusalNotFound, "this account has no such notice")
	case err != nil:
		return a.Gate.Unavailable("mark a notice read", err)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
