package guard

import (
	"encoding/json"
	"sync"
)

// Settings is what the first thread that loads the library says about it. It
// comes as JSON and never from the environment: a Go library sees the
// environment that the process was started with, not what JavaScript made of it.
type Settings struct {
	// Version is the package's version, for messages.
	Version string `json:"version"`
}

var settings struct {
	sync.Mutex
	once  bool
	value Settings
}

// Init takes the settings once per process; later calls change nothing, since
// every thread of a host runs the same package.
func Init(text []byte) {
	settings.Lock()
	defer settings.Unlock()
	if settings.once {
		return
	}
	settings.once = true
	_ = json.Unmarshal(text, &settings.value)
}

// CurrentSettings returns what Init was given.
func CurrentSettings() Settings {
	settings.Lock()
	defer settings.Unlock()
	return settings.value
}
