package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"colloid.net/e2e/cluster"
	"colloid.net/ipc/uds"
	"colloid.net/runnerd/image/imagetest"
)

// web is the workload of the tests with containers, webPort where it listens inside.
const (
	web     = "spread.web"
	webPort = 8080
)

// containerPatience is longer than patience: pulling, unpacking and starting take their time on a busy machine.
const containerPatience = 2 * time.Minute

// containers is a cluster whose cells may pull from a registry of the test.
type containers struct {
	*fixture
	registry *imagetest.Registry
	// credentials is where the cells look for users and passwords. There is no such file at first.
	credentials string
	// published makes web's port one of each cell too, so that the outside reaches it. A cell then has one copy at a
	// time.
	published bool
}

// startContainers starts three cells and a registry at the operator's place. more gives further lines of policy per
// cell, nil for none.
func startContainers(t *testing.T, more func(registry string, cell int) string) *containers {
	t.Helper()
	return startContainersOn(t, more, nil)
}

// startContainersOn is startContainers with something done before the first cell runs.
func startContainersOn(t *testing.T, more func(registry string, cell int) string,
	before func(*cluster.Cluster) error,
) *containers {
	t.Helper()
	needRoot(t, "containers are started by root alone")
	if testing.Short() {
		t.Skip("starts real cells: not with -short")
	}
	if !imagetest.HasShell() {
		t.Skip("needs a static busybox for the images: Debian package busybox-static")
	}
	c := &containers{credentials: filepath.Join(t.TempDir(), "credentials")}
	c.fixture = startWith(t, cluster.Options{CellArguments: []string{"--credentials", c.credentials}, Policy: func(cl *cluster.Cluster, cell int) (string, error) {
		if c.registry == nil && before != nil {
			if err := before(cl); err != nil {
				return "", err
			}
		}
		if c.registry == nil {
			listener, err := cl.Listen()
			if err != nil {
				return "", err
			}
			c.registry = imagetest.NewRegistryOn(t, listener, cl.Dial)
			if err := os.WriteFile(c.authority(cl), c.registry.CA, 0o644); err != nil {
				return "", err
			}
		}
		text := c.basicPolicy(cl)
		if more != nil {
			text += more(c.registry.Host, cell)
		}
		return text, nil
	}})
	return c
}

// basicPolicy trusts the registry as an operator would: by its certificate, and at an address that is not public.
func (c *containers) basicPolicy(cl *cluster.Cluster) string {
	return fmt.Sprintf("registry %s {\n    private\n    ca %s\n}\n", c.registry.Host, c.authority(cl))
}

func (*containers) authority(cl *cluster.Cluster) string {
	return filepath.Join(cl.Directory, "registry.pem")
}

// push stores a version of the web server under a tag. It answers with its version, and with what runs it; change
// changes its configuration.
func (c *containers) push(tag, version string, change func(*v1.Config)) v1.Hash {
	c.t.Helper()
	config := v1.Config{Cmd: []string{"httpd", "-f", "-p", fmt.Sprint(webPort), "-h", "/www"}, WorkingDir: "/www"}
	if change != nil {
		change(&config)
	}
	return c.registry.Push(c.t, tag, imagetest.Busybox(c.t, runtime.GOARCH, config, page(version)))
}

// page is a layer with what the web server answers.
func page(version string) imagetest.File {
	return imagetest.File{Name: "www/index.html", Content: version + "\n"}
}

// webFile is the workload web from an image with a number of replicas and more lines.
func (c *containers) webFile(reference string, replicas int, lines ...string) string {
	c.t.Helper()
	port := fmt.Sprint(webPort)
	if c.published {
		port = fmt.Sprintf("%d:%d", c.port, webPort)
	}
	text := fmt.Sprintf("spread web {\n\timage %s\n\treplicas %d\n\tport %s\n\thealth exec wget -q -O /dev/null "+
		"http://127.0.0.1:%d/ interval=500ms timeout=5s\n\t%s\n}\n", reference, replicas, port, webPort,
		strings.Join(lines, "\n\t"))
	return c.file(text)
}

func (c *containers) file(text string) string {
	c.t.Helper()
	path := filepath.Join(c.t.TempDir(), "web.colloid")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
	return path
}

// in gives the reference of an image of the registry.
func (c *containers) in(repository string) string { return c.registry.Host + "/" + repository }

func (c *containers) waitLong(what string, check func(context.Context) error) {
	c.t.Helper()
	if err := cluster.WaitFor(c.t.Context(), containerPatience, what, check); err != nil {
		c.t.Fatal(err)
	}
}

// workload finds a workload in the status of a cell.
func workloadOf(status *uds.Status, key string) (uds.WorkloadStatus, error) {
	for _, w := range status.Workloads {
		if w.Key == key {
			return w, nil
		}
	}
	return uds.WorkloadStatus{}, fmt.Errorf("no workload %s", key)
}

// copyOf is an instance of web as its own cell sees it.
type copyOf struct {
	cell     *cluster.Cell
	instance uds.InstanceInfo
}

// copies gives the instances of a workload, each from the cell that runs it, which alone knows the process.
func (c *containers) copiesOf(ctx context.Context, key string) (all []copyOf, err error) {
	for _, cell := range c.Running() {
		status, err := cell.Status(ctx)
		if err != nil {
			return nil, err
		}
		w, err := workloadOf(status, key)
		if err != nil {
			return nil, err
		}
		for _, i := range w.Instances {
			if i.Cell == status.Cell.ID {
				all = append(all, copyOf{cell, i})
			}
		}
	}
	return all, nil
}

// get asks the web server of a copy that need not be reached from outside: the request is made by a thread that
// enters the network namespace of the copy's process.
func (i copyOf) get(ctx context.Context) (string, error) {
	path := fmt.Sprintf("/proc/%d/ns/net", i.instance.PID)
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true, DialContext: func(ctx context.Context, kind, address string) (conn net.Conn, err error) {
			errIn := cluster.InNamespace(path, func() error {
				conn, err = new(net.Dialer).DialContext(ctx, kind, address)
				return err
			})
			return conn, errIn
		},
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/", webPort), nil)
	if err != nil {
		return "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<16))
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %s", response.Status)
	}
	return strings.TrimSpace(string(body)), err
}

// serve waits until exactly so many copies of web are ready and answer with a version.
func (c *containers) serve(replicas int, version string) []copyOf {
	c.t.Helper()
	var all []copyOf
	c.waitLong(fmt.Sprintf("%d copies to answer %q", replicas, version), func(ctx context.Context) (err error) {
		if all, err = c.copiesOf(ctx, web); err != nil {
			return err
		}
		if len(all) != replicas {
			return fmt.Errorf("%d copies: %s", len(all), describeCopies(all))
		}
		for _, i := range all {
			if i.instance.State != "ready" {
				return fmt.Errorf("%s", describeCopies(all))
			}
			if answer, err := i.get(ctx); err != nil || answer != version {
				return fmt.Errorf("%s answers %q, %v", i.cell.Name, answer, err)
			}
			if !c.published {
				continue
			}
			if answer, err := c.Get(ctx, c.url(i.cell)); err != nil || strings.TrimSpace(answer) != version {
				return fmt.Errorf("%s answers %q at its published port, %v", i.cell.Name, answer, err)
			}
		}
		return nil
	})
	return all
}

func describeCopies(all []copyOf) string {
	var words []string
	for _, i := range all {
		words = append(words, fmt.Sprintf("%s %s (%s)", i.cell.Name, i.instance.State, i.instance.Reason))
	}
	return strings.Join(words, ", ")
}

// pids are the processes of copies, as "CELL PID", sorted.
func pids(all []copyOf) (list []string) {
	for _, i := range all {
		list = append(list, fmt.Sprintf("%s %d", i.cell.Name, i.instance.PID))
	}
	slices.Sort(list)
	return list
}

// images lists the images of a cell.
func (c *containers) images(cell *cluster.Cell) []map[string]any {
	c.t.Helper()
	var list []map[string]any
	if err := json.Unmarshal([]byte(c.run(cell, 0, "image", "ls", "-o", "json")), &list); err != nil {
		c.t.Fatal(err)
	}
	return list
}
