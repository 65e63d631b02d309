// Owns the engines and the load of the comparison: `engine PORT`, or `load URL MODE CONNECTIONS SECONDS`, which prints a line of JSON.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Events of each stream of a crowd, and the time between them: streams that are open, not busy.
const (
	crowdEvents = 3
	crowdPause  = 5 * time.Second
)

var pad = strings.Repeat("The shelf holds a value. ", 40)

func engine(port string) {
	mux := http.NewServeMux()
	js := func(w http.ResponseWriter, o any) {
		b, _ := json.Marshal(o)
		w.Header().Set("content-type", "application/json")
		w.Write(b)
	}
	mux.HandleFunc("/health", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(200) })
	mux.HandleFunc("/v1/models", func(w http.ResponseWriter, r *http.Request) {
		js(w, map[string]any{"object": "list", "data": []any{map[string]any{"id": "m", "object": "model", "created": 1, "owned_by": "vllm", "root": "m", "max_model_len": 40960}}})
	})
	mux.HandleFunc("/tokenize", func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		t := make([]int, len(b)/4)
		for i := range t {
			t[i] = int(b[i*4])*3 + i%7
		}
		js(w, map[string]any{"count": len(t), "max_model_len": 40960, "tokens": t})
	})
	render := func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		t := make([]int, len(b)/4)
		for i := range t {
			t[i] = int(b[i*4])*3 + i%7
		}
		o := map[string]any{"request_id": "r", "token_ids": t, "token_offsets": nil, "features": nil, "content_parts": nil, "sampling_params": map[string]any{"max_tokens": 1}, "model": "m", "stream": false, "stream_options": nil, "cache_salt": nil, "priority": 0, "kv_transfer_params": nil}
		if strings.Contains(r.URL.Path, "chat") {
			js(w, o)
		} else {
			js(w, []any{o})
		}
	}
	mux.HandleFunc("/v1/chat/completions/render", render)
	mux.HandleFunc("/v1/completions/render", render)
	answer := []byte(`{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"` + pad + `"},"finish_reason":"stop"}],"usage":{"prompt_tokens":300,"completion_tokens":200,"total_tokens":500}}`)
	mux.HandleFunc("/v1/chat/completions", func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		var q struct {
			Stream bool `json:"stream"`
			Max    int  `json:"max_tokens"`
			MaxC   int  `json:"max_completion_tokens"`
		}
		json.Unmarshal(b, &q)
		if q.MaxC > q.Max {
			q.Max = q.MaxC
		}
		if !q.Stream {
			w.Header().Set("content-type", "application/json")
			w.Write(answer)
			return
		}
		w.Header().Set("content-type", "text/event-stream")
		f := w.(http.Flusher)
		pause := 20 * time.Millisecond
		if q.Max <= crowdEvents {
			pause = crowdPause
		}
		tick := time.NewTicker(pause)
		defer tick.Stop()
		for i := 0; i < q.Max; i++ {
			fmt.Fprintf(w, "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word%d\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n", i)
			f.Flush()
			<-tick.C
		}
		io.WriteString(w, "data: [DONE]\n\n")
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { js(w, map[string]any{}) })
	http.ListenAndServe("127.0.0.1:"+port, mux)
}

func load(url, mode string, conns int, seconds float64) {
	tr := &http.Transport{MaxIdleConnsPerHost: conns + 10, MaxConnsPerHost: 0, DialContext: (&net.Dialer{}).DialContext}
	c := &http.Client{Transport: tr}
	end := time.Now().Add(time.Duration(seconds * float64(time.Second)))
	var n, events, bad int64
	var mu sync.Mutex
	var first []float64
	var wg sync.WaitGroup
	for k := 0; k < conns; k++ {
		wg.Add(1)
		go func(k int) {
			defer wg.Done()
			most := 200
			if mode == "stream" {
				time.Sleep(time.Duration(k) * time.Millisecond * 5)
			}
			if mode == "crowd" {
				most = crowdEvents
				time.Sleep(time.Duration(k) * time.Millisecond)
			}
			for i := 0; time.Now().Before(end) || (i == 0 && mode == "crowd"); i++ {
				stream := mode == "stream" || mode == "crowd"
				body, _ := json.Marshal(map[string]any{"model": "m", "stream": stream, "max_tokens": most, "messages": []any{map[string]any{"role": "system", "content": "Conversation " + strconv.Itoa(k) + ". " + pad}, map[string]any{"role": "user", "content": "turn " + strconv.Itoa(i)}}})
				t := time.Now()
				r, err := c.Post(url, "application/json", bytes.NewReader(body))
				if err != nil {
					atomic.AddInt64(&bad, 1)
					continue
				}
				if r.StatusCode != 200 {
					atomic.AddInt64(&bad, 1)
					io.Copy(io.Discard, r.Body)
					r.Body.Close()
					time.Sleep(5 * time.Millisecond)
					continue
				}
				if stream {
					b := bufio.NewReader(r.Body)
					began := false
					for {
						l, err := b.ReadSlice('\n')
						if len(l) > 6 && l[0] == 'd' {
							if !began {
								began = true
								d := time.Since(t).Seconds() * 1e3
								mu.Lock()
								first = append(first, d)
								mu.Unlock()
							}
							atomic.AddInt64(&events, 1)
						}
						if err != nil {
							break
						}
					}
				} else {
					io.Copy(io.Discard, r.Body)
					d := time.Since(t).Seconds() * 1e3
					mu.Lock()
					first = append(first, d)
					mu.Unlock()
				}
				r.Body.Close()
				atomic.AddInt64(&n, 1)
				if mode == "slow" {
					time.Sleep(20 * time.Millisecond)
				}
			}
		}(k)
	}
	begin := time.Now()
	wg.Wait()
	took := time.Since(begin).Seconds()
	sort.Float64s(first)
	p := func(q float64) float64 {
		if len(first) == 0 {
			return -1
		}
		return first[int(q*float64(len(first)-1))]
	}
	fmt.Printf("{\"n\":%d,\"bad\":%d,\"events\":%d,\"s\":%.2f,\"rps\":%.0f,\"p50\":%.3f,\"p99\":%.3f}\n", n, bad, events, took, float64(n)/took, p(.5), p(.99))
}

func main() {
	if os.Args[1] == "engine" {
		engine(os.Args[2])
	}
	conns, _ := strconv.Atoi(os.Args[4])
	s, _ := strconv.ParseFloat(os.Args[5], 64)
	load(os.Args[2], os.Args[3], conns, s)
}
