// Command serve runs the scripted model on a loopback port of its own and
// prints the address, for trying tools by hand:
//
//	go run ./scriptedmodel/serve
package main

import (
	"fmt"
	"net"
	"net/http"
	"os"

	"holdfast/e2e/scriptedmodel"
)

func main() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err == nil {
		fmt.Printf("http://%s\n", l.Addr())
		err = http.Serve(l, scriptedmodel.Handler())
	}
	fmt.Fprintln(os.Stderr, "serve:", err)
	os.Exit(1)
}
