package wire

import "time"

// The paths of the JSON interface. Every one but PathRedeem needs a bearer token.
const (
	PathAccess   = "/v1/access"   // GET ?machine=M: Access
	PathMachines = "/v1/machines" // GET: Machines
	PathDevices  = "/v1/devices"  // GET: Devices; DELETE /v1/devices/{id}
	PathPairings = "/v1/pairings" // POST OpenPairing: PairingOpened; DELETE /v1/pairings/{hash}
	PathRedeem   = "/v1/pairings/redeem"
)

// MaxAPIBodyBytes bounds the body of a /v1 request: a pairing with the longest
// key needs 1.5 KiB.
const MaxAPIBodyBytes = 8 << 10

// MaxPairingTTL is how long a pairing link may stay open.
const MaxPairingTTL = 5 * time.Minute

// Problem is an error of /v1 (RFC 9457, application/problem+json). Code is the
// one that Holdfast-Refusal carries too; Detail says what to do.
type Problem struct {
	Type   string  `json:"type"`
	Title  string  `json:"title"`
	Status int     `json:"status"`
	Detail string  `json:"detail"`
	Code   Refusal `json:"code"`
}

// Access is the answer of PathAccess: what the token may do, and, where the
// query names a machine, whether it is there.
type Access struct {
	Account string       `json:"account"`
	Kind    string       `json:"kind"` // "agent" or "device"
	Device  string       `json:"device,omitempty"`
	Machine MachineID    `json:"machine,omitempty"`
	State   MachineState `json:"state,omitempty"`
	Expires *time.Time   `json:"expires,omitempty"` // of the token
}

// MachineState is what the relay knows about a machine now, never what it once
// knew.
type MachineState string

// The states of a machine.
const (
	// StateOffline: no control connection is held for it.
	StateOffline MachineState = "offline"
	// StateConnected: one is held; that a device can get in is not proven.
	StateConnected MachineState = "connected"
	// StateReachable: a dial-back read the service's banner at ProvenAt.
	StateReachable MachineState = "reachable"
	// StateUnreachable: a control connection is held, but dial-backs fail since
	// Since, for Reason.
	StateUnreachable MachineState = "unreachable"
)

// MachineInfo is one machine of Machines.
type MachineInfo struct {
	Machine MachineID    `json:"machine"`
	State   MachineState `json:"state"`
	// ProvenAt is when a dial-back last reached the banner of Service, which is
	// empty for the machine's own sshd. Set where that ever happened, also
	// beside other states.
	ProvenAt *time.Time  `json:"provenAt,omitempty"`
	Service  ServiceName `json:"service,omitempty"`
	// Since and Reason go with StateUnreachable.
	Since  *time.Time `json:"since,omitempty"`
	Reason string     `json:"reason,omitempty"`
	// ConnectedAt is when a control connection last took the name.
	ConnectedAt *time.Time `json:"connectedAt,omitempty"`
	// Version, Features and Services are the agent's hello.
	Version  string        `json:"version,omitempty"`
	Features []string      `json:"features,omitempty"`
	Services []ServiceName `json:"services,omitempty"`
}

// Machines is the answer of PathMachines.
type Machines struct {
	Account  string        `json:"account"`
	Machines []MachineInfo `json:"machines"`
}

// DeviceInfo is one device that may enter.
type DeviceInfo struct {
	ID      string     `json:"id"`
	Name    string     `json:"name"`
	Key     string     `json:"key,omitempty"` // SSH public key, "type base64"
	Created time.Time  `json:"created"`
	Used    *time.Time `json:"used,omitempty"`
	// This marks the device whose token asked.
	This bool `json:"this,omitempty"`
}

// Devices is the answer of GET PathDevices: the devices that are not revoked.
type Devices struct {
	Devices []DeviceInfo `json:"devices"`
}

// OpenPairing is the body of POST PathPairings, sent by an agent.
type OpenPairing struct {
	Hash       string `json:"hash"`       // base64url of SHA-256 of the relay secret
	TTLSeconds int    `json:"ttlSeconds"` // 1 to 300
}

// PairingOpened is the answer.
type PairingOpened struct {
	Expires time.Time `json:"expires"`
}

// RedeemPairing is the body of POST PathRedeem, sent by a device without a token.
type RedeemPairing struct {
	Secret string `json:"secret"` // base64url of the relay secret
	Key    string `json:"key"`    // the device's SSH public key, "type base64"
	Name   string `json:"name"`   // the device's name
}

// PairingRedeemed is the answer. Token is the only secret that the relay ever
// sends, and it is not kept there.
type PairingRedeemed struct {
	Token   string    `json:"token"`
	Device  string    `json:"device"`
	Account string    `json:"account"`
	Machine MachineID `json:"machine"`
}
