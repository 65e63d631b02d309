module routers

go 1.20
