module holdfast/e2e

go 1.26.0

require (
	github.com/coder/websocket v1.8.15
	golang.org/x/crypto v0.59.0
)

require golang.org/x/sys v0.50.0 // indirect
