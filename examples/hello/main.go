// Command hello is the smallest useful workload: an HTTP server that says which cell it runs on. It
// shows what a process workload gets from its cell and how it should behave:
//
//   - it listens on $COLLOID_ADDRESS:$PORT, the address where its cell's instances answer. A container has addresses
//     of its own and publishes the port: there it is started with -all and listens on all of them;
//   - /healthz answers 200 while it accepts work, for the health check of the configuration;
//   - on SIGTERM it stops listening at once, finishes the requests it has and exits 0.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// drainTimeout bounds the wait for requests in progress. It stays below the 10 s that a workload
// gets between SIGTERM and SIGKILL by default.
const drainTimeout = 8 * time.Second

func main() {
	all := flag.Bool("all", false, "listen on all addresses instead of $COLLOID_ADDRESS, as in a container")
	flag.Parse()
	address := os.Getenv("COLLOID_ADDRESS")
	if *all {
		address = ""
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := serve(ctx, net.JoinHostPort(address, port())); err != nil {
		fmt.Fprintf(os.Stderr, "hello: %v\n", err)
		os.Exit(1)
	}
}

func port() string {
	if port := os.Getenv("PORT"); port != "" {
		return port
	}
	return "8080"
}

func serve(ctx context.Context, address string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	fmt.Printf("hello: listening on %s\n", listener.Addr())
	server := &http.Server{Handler: handler(os.Getenv("COLLOID_CELL")), ReadHeaderTimeout: 5 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	limit, cancel := context.WithTimeout(context.Background(), drainTimeout)
	defer cancel()
	if err := server.Shutdown(limit); err != nil {
		return fmt.Errorf("requests still open after %v: %w", drainTimeout, err)
	}
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func handler(cell string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "hello from cell %s pid %d\n", cell, os.Getpid())
	})
	return mux
}
