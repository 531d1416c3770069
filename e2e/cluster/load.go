package cluster

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

// requestTimeout bounds one HTTP request of Get, and loadTimeout one of Load, which no request may fail: it is what a
// patient client waits, so that an overloaded machine is not taken for a gap. LoadResult.Longest tells of both.
const (
	requestTimeout = time.Second
	loadTimeout    = 3 * time.Second
)

// answerSizeMax bounds how much of an answer is read.
const answerSizeMax = 1 << 16

// Get asks a URL from the operator's place; another status than 200 is an error.
func (c *Cluster) Get(ctx context.Context, url string) (string, error) {
	return get(ctx, c.HTTP(requestTimeout), url)
}

func get(ctx context.Context, client *http.Client, url string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, answerSizeMax))
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answers %s", url, response.Status)
	}
	return string(body), err
}

// LoadResult is what became of the requests of a Load.
type LoadResult struct {
	Requests, Errors int
	LastError        error
	Longest          time.Duration // time of the slowest answered request
}

// Load is a stream of requests, one at a time, for tests that promise uninterrupted service.
type Load struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
	result LoadResult // of the goroutine until done
}

// StartLoad asks the URLs in turn, pausing between requests, until Stop. Each request tries the URLs
// once from its turn on and counts as an error only if none of them answers, as a client with
// several addresses does.
func (c *Cluster) StartLoad(ctx context.Context, pause time.Duration, urls func() []string) *Load {
	ctx, cancel := context.WithCancel(ctx)
	l := &Load{cancel: cancel}
	client := c.HTTP(loadTimeout)
	l.done.Go(func() {
		for turn := 0; ctx.Err() == nil; turn++ {
			l.request(ctx, client, urls(), turn)
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
		}
	})
	return l
}

func (l *Load) request(ctx context.Context, client *http.Client, urls []string, turn int) {
	err := fmt.Errorf("no address to ask")
	began := time.Now()
	for i := range urls {
		if _, err = get(ctx, client, urls[(turn+i)%len(urls)]); err == nil {
			break
		}
	}
	if ctx.Err() != nil {
		return // cut off by Stop: says nothing about the cluster
	}
	l.result.Requests++
	if err != nil {
		l.result.Errors++
		l.result.LastError = err
		return
	}
	l.result.Longest = max(l.result.Longest, time.Since(began))
}

// Stop ends the stream and returns what became of it.
func (l *Load) Stop() LoadResult {
	l.cancel()
	l.done.Wait()
	return l.result
}
