// Command misbehave is a workload of the end-to-end tests. Its first argument says what it does:
//
//	crash    ends with code 7 at once
//	say      writes its second argument to its output, and then waits for the end
//	secret   answers HTTP with the SHA-256 of $PASSWORD and of $COLLOID_FILES/etc/key
//
// It is no example: see examples/hello.
package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	switch {
	case len(os.Args) == 3 && os.Args[1] == "say":
		fmt.Println(os.Args[2])
		<-ctx.Done()
		return
	case len(os.Args) < 2 || os.Args[1] != "secret":
		os.Exit(7)
	}
	key, err := os.ReadFile(filepath.Join(os.Getenv("COLLOID_FILES"), "etc/key"))
	if err != nil {
		fmt.Fprintf(os.Stderr, "misbehave: %v\n", err)
		os.Exit(1)
	}
	answer := fmt.Sprintf("%x %x\n", sha256.Sum256([]byte(os.Getenv("PASSWORD"))), sha256.Sum256(key))
	server := &http.Server{
		Addr: net.JoinHostPort(os.Getenv("COLLOID_ADDRESS"), os.Getenv("PORT")), ReadHeaderTimeout: 5 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, answer) }),
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		<-ctx.Done()
		limit, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = server.Shutdown(limit)
	}()
	if err := server.ListenAndServe(); err != http.ErrServerClosed {
		fmt.Fprintf(os.Stderr, "misbehave: %v\n", err)
		os.Exit(1)
	}
	<-done
}
