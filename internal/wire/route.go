package wire

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// RouteKind says which of the WebSocket routes a path is.
type RouteKind int

// The WebSocket routes of version 1.
const (
	RouteAgent     RouteKind = iota + 1 // /agent/{machineID}: an agent's control connection
	RouteConnect                        // /connect/{machineID}: a device's stream
	RouteAgentData                      // /agent-data/{machineID}/{connID}: the agent's half of it
	RouteLive                           // /v1/live/{channel}: a live channel
)

// Route is a parsed WebSocket route.
type Route struct {
	Kind    RouteKind
	Machine MachineID
	Conn    ConnID
	// Service is empty where the request names none: the machine's own sshd.
	Service ServiceName
	Channel string
}

const (
	agentPath     = "/agent/"
	connectPath   = "/connect/"
	agentDataPath = "/agent-data/"
	livePath      = "/v1/live/"
)

// ErrNoRoute says that a path is none of the WebSocket routes.
var ErrNoRoute = errors.New("not a WebSocket route")

// RouteKindOf tells which route a path belongs to before anything in it is
// checked, so that a token can be verified first. Zero means none.
func RouteKindOf(path string) RouteKind {
	switch {
	case strings.HasPrefix(path, agentPath):
		return RouteAgent
	case strings.HasPrefix(path, connectPath):
		return RouteConnect
	case strings.HasPrefix(path, agentDataPath):
		return RouteAgentData
	case strings.HasPrefix(path, livePath):
		return RouteLive
	}
	return 0
}

// ParseRoute parses the path and query of a request. It looks at the escaped
// path: no identifier needs an escape, so one that has any is refused. Errors
// wrap ErrNoRoute or ErrSyntax.
func ParseRoute(u *url.URL) (Route, error) {
	path := u.EscapedPath()
	r := Route{Kind: RouteKindOf(path)}
	var err error
	switch r.Kind {
	case RouteAgent:
		r.Machine, err = ParseMachineID(path[len(agentPath):])
	case RouteConnect:
		if r.Machine, err = ParseMachineID(path[len(connectPath):]); err == nil {
			r.Service, err = queryService(u)
		}
	case RouteAgentData:
		m, c, ok := strings.Cut(path[len(agentDataPath):], "/")
		if !ok {
			return Route{}, fmt.Errorf("path lacks a connection id: %w", ErrSyntax)
		}
		if r.Machine, err = ParseMachineID(m); err == nil {
			r.Conn, err = ParseConnID(c)
		}
	case RouteLive:
		r.Channel = path[len(livePath):]
		err = checkName("channel name", r.Channel)
	default:
		return Route{}, ErrNoRoute
	}
	if err != nil {
		return Route{}, err
	}
	return r, nil
}

func queryService(u *url.URL) (ServiceName, error) {
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return "", fmt.Errorf("query: %w", ErrSyntax)
	}
	values, ok := query["service"]
	if !ok {
		return "", nil
	}
	if len(values) != 1 {
		return "", fmt.Errorf("service is given %d times: %w", len(values), ErrSyntax)
	}
	return ParseServiceName(values[0])
}

// AgentPath is the path of a machine's control connection.
func AgentPath(m MachineID) string { return agentPath + string(m) }

// ConnectPath is the path and query of a device's stream. An empty service is
// the machine's own sshd.
func ConnectPath(m MachineID, s ServiceName) string {
	if s == "" {
		return connectPath + string(m)
	}
	return connectPath + string(m) + "?service=" + url.QueryEscape(string(s))
}

// AgentDataPath is the path of the agent's half of a stream.
func AgentDataPath(m MachineID, c ConnID) string {
	return agentDataPath + string(m) + "/" + string(c)
}
