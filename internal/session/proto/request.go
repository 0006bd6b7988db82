package proto

import (
	"time"

	"holdfast/internal/session"
)

// Request is what all requests have.
type Request struct {
	Op Op    `json:"op"`
	ID int64 `json:"id"` // from 1 to MaxID, not the one of another open request
}

// On is a request about one session, with nothing further.
type On struct {
	Session session.ID `json:"session"`
}

// Reply types a text into a session and sends it with Enter.
type Reply struct {
	Session session.ID `json:"session"`
	// Key makes the reply happen at most once: the same key again, on this or
	// another connection, gets what came of the first. 1 to MaxKeyBytes
	// characters of base64url.
	Key  string `json:"key"`
	Text string `json:"text"`
	// Append types behind what stands in the input box, instead of refusing.
	Append bool `json:"append,omitempty"`
	// Secret says that the text is a password. It is required where a password is
	// asked for, and refused where none is.
	Secret bool `json:"secret,omitempty"`
	// Draft leaves Enter out: the text stands in the input box.
	Draft bool `json:"draft,omitempty"`
}

// Approve answers a dialog.
type Approve struct {
	Session session.ID `json:"session"`
	// Digest is that of the dialog which the person has read.
	Digest string `json:"digest"`
	// Option is the id of one of its options, or Role chooses the first option of
	// that role.
	Option string       `json:"option,omitempty"`
	Role   session.Role `json:"role,omitempty"`
	// Key is as in Reply, and may be left out.
	Key string `json:"key,omitempty"`
}

// Keys presses keys by name.
type Keys struct {
	Session session.ID `json:"session"`
	Keys    []string   `json:"keys"` // "Enter", "Escape", "C-c", … (docs/sessions.md)
}

// Page asks for a page of a conversation that ends before a cursor.
type Page struct {
	Session session.ID `json:"session"`
	// Agent chooses the conversation of a sub-agent, as an item names it.
	Agent  string `json:"agent,omitempty"`
	Before string `json:"before,omitempty"` // nothing means the end
	Limit  int    `json:"limit,omitempty"`  // of items; zero means 50
}

// Follow asks for what a conversation gains after a cursor.
type Follow struct {
	Session session.ID `json:"session"`
	// Agent chooses the conversation of a sub-agent, as an item names it.
	Agent string `json:"agent,omitempty"`
	From  string `json:"from,omitempty"` // nothing means the end
}

// Unfollow ends a follow, which the id of its request names.
type Unfollow struct {
	Follow int64 `json:"follow"`
}

// Search looks for text in a conversation, backwards from a cursor.
type Search struct {
	Session session.ID `json:"session"`
	// Agent chooses the conversation of a sub-agent, as an item names it.
	Agent  string `json:"agent,omitempty"`
	Query  string `json:"query"`
	Before string `json:"before,omitempty"`
	Limit  int    `json:"limit,omitempty"` // zero means 20
}

// Blob asks for a piece of a picture or of a text that was cut.
type Blob struct {
	Session session.ID `json:"session"`
	// Agent chooses the conversation of a sub-agent, as an item names it.
	Agent  string `json:"agent,omitempty"`
	Blob   string `json:"blob"`
	Offset int64  `json:"offset,omitempty"`
	Bytes  int    `json:"bytes,omitempty"` // zero means MaxPieceBytes
}

// BlobPiece answers Blob.
type BlobPiece struct {
	Data []byte `json:"data"` // base64 in JSON
	End  bool   `json:"end"`  // no byte follows
}

// Scrollback asks for lines of the pane: Lines of them, those that end Skip
// lines above its bottom.
type Scrollback struct {
	Session session.ID `json:"session"`
	Skip    int        `json:"skip,omitempty"`
	Lines   int        `json:"lines,omitempty"` // zero means 200
}

// Upload begins to send a file to the machine.
type Upload struct {
	Name string `json:"name"`
	Size int64  `json:"size"`
	// Session, if given, gets the file's path typed into its input box, without
	// Enter, once the file is there.
	Session session.ID `json:"session,omitempty"`
}

// Uploading answers Upload.
type Uploading struct {
	Upload string `json:"upload"`
}

// Piece is the next piece of an upload.
type Piece struct {
	Upload string `json:"upload"`
	Offset int64  `json:"offset"`
	Data   []byte `json:"data"` // base64 in JSON
}

// Uploaded answers Piece. Path is given with the last piece.
type Uploaded struct {
	Received int64  `json:"received"`
	Path     string `json:"path,omitempty"` // absolute, on the machine
	// Inserted says that the path was typed; NotInserted why not, where that was
	// asked for.
	Inserted    bool   `json:"inserted,omitempty"`
	NotInserted string `json:"notInserted,omitempty"`
}

// Command is one that a new session can be started with.
type Command struct {
	Name  string `json:"name"`
	Label string `json:"label"`
}

// Commands answers OpCommands.
type Commands struct {
	Commands []Command `json:"commands"`
	// Dirs are directories to offer: those of the sessions there are, and home.
	Dirs []string `json:"dirs"`
}

// New starts a session in a directory.
type New struct {
	Dir     string `json:"dir"`     // absolute, or ~ and what is below it
	Command string `json:"command"` // the name of one of the list
}

// Started answers New.
type Started struct {
	Session session.ID `json:"session"`
}

// End ends a session: what runs in its pane is hung up.
type End struct {
	Session session.ID `json:"session"`
	// Confirm must be the session's name, as the person has read it.
	Confirm string `json:"confirm"`
}

// Look tells that a person is looking at sessions for LeaseTime from now. It
// replaces what this view of the device looked at; none takes it back.
type Look struct {
	Sessions []session.ID `json:"sessions"`
	// View names one of several windows of a device, at most MaxKeyBytes of base64url: what one of them shows no more
	// another may still show. It outlives the connection, so that a window that connects again replaces its own.
	View string `json:"view,omitempty"`
}

// Looking answers Look.
type Looking struct {
	Until time.Time `json:"until"`
}

// Refresh asks to judge a session again now, or all of them.
type Refresh struct {
	Session session.ID `json:"session,omitempty"`
}

// Pong answers OpPing.
type Pong struct {
	Now time.Time `json:"now"`
}

// Attach answers OpAttach: the command that shows the session in a terminal on
// the machine, without resizing it for others.
type Attach struct {
	Args []string `json:"args"`
	// Fit are the arguments that let the terminal's size count.
	Fit []string `json:"fit"`
}

// PushSubscribe asks this machine to call the device through its browser's push
// service when a session begins to wait. It replaces what the device asked for
// before. Keys are base64url without padding.
type PushSubscribe struct {
	Endpoint string `json:"endpoint"` // https; a secret
	P256dh   string `json:"p256dh"`   // the browser's public key
	Auth     string `json:"auth"`     // the browser's secret
	// VAPID is the private key that the device made its subscription for.
	VAPID string `json:"vapid"`
	// Subject is an https or mailto address for the push service; optional.
	Subject string `json:"subject,omitempty"`
	// As is what the device calls this machine in messages: random, 16 to 64
	// characters of base64url. Names of sessions in messages are made with it.
	As string `json:"as"`
}

// PushState answers the requests about push messages: how it stands with the
// device that asks.
type PushState struct {
	On bool `json:"on"`
	// Ended says that the push service has ended the subscription.
	Ended   bool      `json:"ended,omitempty"`
	Service string    `json:"service,omitempty"` // its host
	Since   time.Time `json:"since,omitzero"`
	// Delivered is when the push service last took a message.
	Delivered time.Time `json:"delivered,omitzero"`
	// Failed is when it last did not, and Why.
	Failed time.Time `json:"failed,omitzero"`
	Why    string    `json:"why,omitempty"`
	// Again is when the message that was not taken is tried again.
	Again time.Time `json:"again,omitzero"`
}
